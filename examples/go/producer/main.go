// Producer sends orders to whichever node of a pair serves, and survives a takeover.
//
//	go run ./producer [COUNT [HOST:PORT ...]]
//
// An order is stored once its RECEIPT has come. Without a RECEIPT the producer connects to the other node
// and sends the order again; by its duplicate id the broker stores it once.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/go-stomp/stomp/v3"

	"orthia/examples/pair"
)

const (
	queue = "/queue/orders"
	pause = 20 * time.Millisecond // between two orders, to leave time for killing a node
)

func main() {
	count := 1000
	if len(os.Args) > 1 {
		var err error
		if count, err = strconv.Atoi(os.Args[1]); err != nil {
			log.Fatal(err)
		}
	}
	nodes := pair.Nodes(2)
	conn := pair.Connect(nodes)
	run := time.Now().UnixNano() // the ids of another run are others
	for number := 0; number < count; number++ {
		order := fmt.Sprintf("order %d", number)
		id := stomp.SendOpt.Header("_AMQ_DUPL_ID", fmt.Sprintf("%d-%d", run, number))
		for {
			// With stomp.SendOpt.Receipt it returns once the RECEIPT has come.
			err := conn.Send(queue, "text/plain", []byte(order), id, stomp.SendOpt.Receipt)
			if err == nil {
				break
			}
			fmt.Println("the connection is lost:", err)
			conn.MustDisconnect()
			conn = pair.Connect(nodes)
		}
		fmt.Println("stored", order)
		time.Sleep(pause)
	}
	if err := conn.Disconnect(); err != nil {
		log.Fatal(err)
	}
}
