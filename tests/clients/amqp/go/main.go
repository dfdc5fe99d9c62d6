// A sender and a receiver of go-amqp between two nodes: client QUEUE COUNT ADDRESS ADDRESS .
// It says "accepted N" for each message that is, goes to the other node when a connection is lost, and
// prints as JSON what it saw.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	window   = 20
	patience = 5 * time.Minute
	pause    = 100 * time.Millisecond
)

type told struct {
	Addresses []string `json:"addresses"`
	Bodies    []int    `json:"bodies"`
}

func main() {
	queue, addresses := os.Args[1], os.Args[3:]
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var seen told
	var working sync.WaitGroup
	working.Add(2)
	go func() {
		defer working.Done()
		send(ctx, queue, count, addresses, &seen)
	}()
	go func() {
		defer working.Done()
		receive(ctx, queue, count, addresses, &seen)
	}()
	working.Wait()
	line, err := json.Marshal(seen)
	must(err)
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// visit does something with a session, on one node after the other until it is done.
func visit(ctx context.Context, addresses []string, do func(address string, session *amqp.Session) error) {
	for tries := 0; ; tries++ {
		address := addresses[tries%len(addresses)]
		conn, err := amqp.Dial(ctx, "amqp://"+address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
		if err == nil {
			var session *amqp.Session
			if session, err = conn.NewSession(ctx, nil); err == nil {
				err = do(address, session)
			}
			_ = conn.Close()
		}
		if err == nil {
			return
		}
		must(ctx.Err())
		time.Sleep(pause)
	}
}

// send has at most so many messages under way as there are workers. Each sends its own in order, and
// again, with the same duplicate id, what was not accepted when the connection was lost.
func send(ctx context.Context, queue string, count int, addresses []string, seen *told) {
	var mutex sync.Mutex
	accepted, waiting := 0, make(chan int, count+window)
	for number := 0; number < count; number++ {
		waiting <- number
	}
	visit(ctx, addresses, func(address string, session *amqp.Session) error {
		sender, err := session.NewSender(ctx, queue, &amqp.SenderOptions{TargetCapabilities: []string{"queue"}})
		if err != nil {
			return err
		}
		seen.Addresses = append(seen.Addresses, address)
		var workers sync.WaitGroup
		var failure error
		for worker := 0; worker < window; worker++ {
			workers.Add(1)
			go func() {
				defer workers.Done()
				for {
					var number int
					select {
					case number = <-waiting:
					default:
						return
					}
					err := sender.Send(ctx, message(queue, number), nil)
					mutex.Lock()
					if err != nil {
						failure = err
						waiting <- number
						mutex.Unlock()
						return
					}
					accepted++
					fmt.Println("accepted", accepted)
					mutex.Unlock()
				}
			}()
		}
		workers.Wait()
		return failure
	})
}

func message(queue string, number int) *amqp.Message {
	body := strconv.Itoa(number)
	return &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true},
		ApplicationProperties: map[string]any{"_AMQ_DUPL_ID": queue + "-" + body},
		Data:                  [][]byte{[]byte(body)},
	}
}

func receive(ctx context.Context, queue string, count int, addresses []string, seen *told) {
	different := map[int]bool{}
	visit(ctx, addresses, func(_ string, session *amqp.Session) error {
		options := amqp.ReceiverOptions{Credit: 50, SourceCapabilities: []string{"queue"}}
		receiver, err := session.NewReceiver(ctx, queue, &options)
		if err != nil {
			return err
		}
		for len(different) < count {
			got, err := receiver.Receive(ctx, nil)
			if err != nil {
				return err
			}
			number, err := strconv.Atoi(string(got.GetData()))
			must(err)
			if err := receiver.AcceptMessage(ctx, got); err != nil {
				return err
			}
			different[number] = true
			seen.Bodies = append(seen.Bodies, number)
		}
		return nil
	})
}
