// Package pair connects to whichever node of a pair serves: go-stomp leaves that to its users.
package pair

import (
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/go-stomp/stomp/v3"
)

// Nodes returns the addresses that the command line names from argument first on, or those of `make run`.
func Nodes(first int) []string {
	if len(os.Args) > first {
		return os.Args[first:]
	}
	return []string{"127.0.0.1:61613", "127.0.0.1:61614"}
}

// Connect tries one node after the other until one serves; a node that waits has no port open.
// STOMP_LOGIN and STOMP_PASSCODE are the login, where one is wanted. A refused login ends the program.
func Connect(nodes []string) *stomp.Conn {
	options := []func(*stomp.Conn) error{
		// A Send that begins as the connection ends would wait for its RECEIPT for good.
		stomp.ConnOpt.RcvReceiptTimeout(10 * time.Second),
		stomp.ConnOpt.HeartBeat(10*time.Second, 10*time.Second), // else a lost host is noticed late
	}
	if login := os.Getenv("STOMP_LOGIN"); login != "" {
		options = append(options, stomp.ConnOpt.Login(login, os.Getenv("STOMP_PASSCODE")))
	}
	for {
		for _, node := range nodes {
			conn, err := stomp.Dial("tcp", node, options...)
			if err == nil {
				fmt.Println("connected to", node)
				return conn
			}
			var refused stomp.Error
			if errors.As(err, &refused) {
				log.Fatal(err)
			}
		}
		time.Sleep(time.Second / 2)
	}
}
