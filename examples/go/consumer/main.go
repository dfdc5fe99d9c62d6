// Consumer takes orders from whichever node of a pair serves, and survives a takeover.
//
//	go run ./consumer [HOST:PORT ...]
//
// An order is acknowledged after it is worked on. An order that was not yet acknowledged when a node died
// comes again from the other one, so the consumer must recognise it. Ctrl-C ends it.
package main

import (
	"fmt"

	"github.com/go-stomp/stomp/v3"

	"orthia/examples/pair"
)

const queue = "/queue/orders"

// go-stomp keeps 16 messages for its user. With more of them on their way it waits for the user to take
// them, while the user waits for it to write an ACK.
var prefetch = stomp.SubscribeOpt.Header("prefetch-count", "16")

func main() {
	nodes := pair.Nodes(1)
	done := map[string]bool{} // a real consumer keeps it where it keeps what comes of its work
	for {
		conn := pair.Connect(nodes)
		err := work(conn, done)
		fmt.Println("the connection is lost:", err)
		conn.MustDisconnect()
	}
}

// work works on orders until the connection is lost.
func work(conn *stomp.Conn, done map[string]bool) error {
	subscription, err := conn.Subscribe(queue, stomp.AckClientIndividual, prefetch)
	if err != nil {
		return err
	}
	for {
		message, err := subscription.Read()
		if err != nil {
			return err
		}
		order := string(message.Body)
		if done[order] {
			fmt.Println("again", order)
		} else {
			done[order] = true
			fmt.Println("got", order) // the work on the order goes here
		}
		if err := conn.Ack(message); err != nil {
			return err
		}
	}
}
