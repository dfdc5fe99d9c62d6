// What users of go-stomp do, one scenario a run: client SCENARIO ADDRESS... .
// It prints a line of JSON for whatever the test is to judge.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-stomp/stomp/v3"
	"github.com/go-stomp/stomp/v3/frame"
)

const (
	awkward  = "a:b\\c\nd ü"
	patience = 2 * time.Minute
)

var (
	header    = stomp.SendOpt.Header
	receipt   = stomp.SendOpt.Receipt
	selecting = func(text string) func(*frame.Frame) error { return stomp.SubscribeOpt.Header("selector", text) }
)

// seen is a message as the test sees it.
type seen struct {
	Body        string `json:"body"`
	Redelivered bool   `json:"redelivered"`
}

func main() {
	scenarios := map[string]func(addresses []string){
		"login": login, "sent": sent, "cumulative": cumulative, "nack": nack,
		"transaction": transaction, "durable": durable, "selector": selector, "delay": delay,
		"duplicate": duplicate, "priority": priority, "group": group, "browse": browse, "versions": versions,
		"destinations": destinations, "takeover": takeover,
	}
	scenarios[os.Args[1]](os.Args[2:])
}

func tell(what any) {
	line, err := json.Marshal(what)
	must(err)
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refusal is what the ERROR said.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func dial(address string, options ...func(*stomp.Conn) error) (*stomp.Conn, error) {
	all := append([]func(*stomp.Conn) error{
		stomp.ConnOpt.Login(os.Getenv("STOMP_LOGIN"), os.Getenv("STOMP_PASSCODE")),
		stomp.ConnOpt.RcvReceiptTimeout(patience),
		stomp.ConnOpt.DisconnectReceiptTimeout(patience),
		stomp.ConnOpt.UnsubscribeReceiptTimeout(patience / 20),
	}, options...)
	return stomp.Dial("tcp", address, all...)
}

func connect(address string, options ...func(*stomp.Conn) error) *stomp.Conn {
	conn, err := dial(address, options...)
	must(err)
	return conn
}

func send(conn *stomp.Conn, to, body string, options ...func(*frame.Frame) error) {
	must(conn.Send(to, "text/plain", []byte(body), append(options, receipt)...))
}

func subscribe(conn *stomp.Conn, to string, ack stomp.AckMode, options ...func(*frame.Frame) error) *stomp.Subscription {
	subscription, err := conn.Subscribe(to, ack, options...)
	must(err)
	return subscription
}

func next(subscription *stomp.Subscription) *stomp.Message {
	message, err := subscription.Read()
	must(err)
	return message
}

// unsubscribe waits until the RECEIPT has closed the subscription's channel. go-stomp waits too, but
// for good where the RECEIPT comes between its look at the subscription and its wait.
func unsubscribe(subscription *stomp.Subscription, options ...func(*frame.Frame) error) {
	err := subscription.Unsubscribe(options...)
	if !errors.Is(err, &stomp.ErrUnsubscribeReceiptTimeout) {
		must(err)
		return
	}
	for late := time.After(patience); ; {
		select {
		case _, open := <-subscription.C:
			if !open {
				return
			}
		case <-late:
			must(err)
		}
	}
}

func bodies(subscription *stomp.Subscription, count int) []seen {
	all := []seen{}
	for range make([]struct{}, count) {
		all = append(all, as(next(subscription)))
	}
	return all
}

func as(message *stomp.Message) seen {
	return seen{string(message.Body), message.Header.Get("redelivered") == "true"}
}

func login(addresses []string) {
	_, err := dial(addresses[0], stomp.ConnOpt.Login(os.Getenv("STOMP_LOGIN"), "wrong"))
	tell(refusal(err))
	conn := connect(addresses[0], stomp.ConnOpt.HeartBeat(time.Second, time.Second))
	tell(string(conn.Version()))
	must(conn.Disconnect())
}

func sent(addresses []string) {
	conn := connect(addresses[0])
	body := make([]byte, 256_000)
	for index := range body {
		body[index] = byte(index)
	}
	must(conn.Send("/queue/go-sent", "a/b", body, header(awkward, awkward), receipt))
	send(conn, "/queue/go-sent", "")
	must(conn.Send("/queue/go-sent", "", []byte("text"), stomp.SendOpt.NoContentLength, receipt))
	subscription := subscribe(conn, "/queue/go-sent", stomp.AckAuto)
	message := next(subscription)
	tell(string(message.Body) == string(body))
	tell([]string{message.ContentType, message.Header.Get(awkward)})
	tell(bodies(subscription, 2))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func cumulative(addresses []string) {
	conn := connect(addresses[0])
	for number := range make([]struct{}, 5) {
		send(conn, "/queue/go-cumulative", fmt.Sprint(number))
	}
	subscription := subscribe(conn, "/queue/go-cumulative", stomp.AckClient)
	messages := []*stomp.Message{}
	for range make([]struct{}, 5) {
		messages = append(messages, next(subscription))
	}
	must(conn.Ack(messages[2]))
	unsubscribe(subscription)
	again := subscribe(conn, "/queue/go-cumulative", stomp.AckClientIndividual)
	tell(bodies(again, 2))
	unsubscribe(again)
	must(conn.Disconnect())
}

func nack(addresses []string) {
	conn := connect(addresses[0])
	dead := subscribe(conn, os.Getenv("STOMP_DEAD_LETTERS"), stomp.AckClientIndividual, selecting("kind = 'go'"))
	send(conn, "/queue/go-failing", "bad", header("kind", "go"))
	failing := subscribe(conn, "/queue/go-failing", stomp.AckClientIndividual)
	for range make([]struct{}, 2) {
		message := next(failing)
		tell(as(message))
		must(conn.Nack(message))
	}
	message := next(dead)
	tell([]string{string(message.Body), message.Header.Get("_AMQ_ORIG_QUEUE")})
	must(conn.Ack(message))
	must(conn.Disconnect())
}

func transaction(addresses []string) {
	conn := connect(addresses[0])
	send(conn, "/queue/go-transacted", "first")
	subscription := subscribe(conn, "/queue/go-transacted", stomp.AckClientIndividual)
	first := next(subscription)
	aborted, err := conn.BeginWithError()
	must(err)
	must(aborted.Send("/queue/go-transacted", "", []byte("aborted")))
	must(aborted.Ack(first))
	must(aborted.AbortWithReceipt())
	committed, err := conn.BeginWithError()
	must(err)
	must(committed.Ack(first))
	must(committed.Send("/queue/go-transacted", "", []byte("second")))
	send(conn, "/queue/go-transacted", "beside")
	must(committed.CommitWithReceipt())
	tell(bodies(subscription, 2))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func durable(addresses []string) {
	desk := stomp.ConnOpt.Header("client-id", "go-desk")
	name := stomp.SubscribeOpt.Header("durable-subscription-name", "go-report")
	conn := connect(addresses[0], desk)
	subscription := subscribe(conn, "/topic/go-durable", stomp.AckClientIndividual, name)
	unsubscribe(subscription)
	send(conn, "/topic/go-durable", "meanwhile")
	must(conn.Disconnect())
	conn = connect(addresses[0], desk)
	subscription = subscribe(conn, "/topic/go-durable", stomp.AckClientIndividual, name)
	message := next(subscription)
	tell(as(message))
	must(conn.Ack(message))
	unsubscribe(subscription, name)
	send(conn, "/topic/go-durable", "to nobody")
	subscription = subscribe(conn, "/topic/go-durable", stomp.AckClientIndividual, name)
	// Once it has answered to this the subscription is there.
	send(conn, "/topic/go-durable", "anew")
	tell(bodies(subscription, 1))
	unsubscribe(subscription, name)
	must(conn.Disconnect())
	conn = connect(addresses[0])
	_, err := subscribe(conn, "/topic/go-durable", stomp.AckAuto, name).Read()
	tell(refusal(err))
}

func selector(addresses []string) {
	conn := connect(addresses[0])
	subscription := subscribe(conn, "/queue/go-selected", stomp.AckAuto, selecting("area = 'Europe' AND price > 2.5"))
	for _, one := range [][]string{{"Asia", "9"}, {"Europe", "1"}, {"Europe", "3"}} {
		send(conn, "/queue/go-selected", one[0]+" "+one[1], header("area", one[0]), header("price", one[1]))
	}
	tell(bodies(subscription, 1))
	_, err := subscribe(conn, "/queue/go-selected", stomp.AckAuto, selecting("area = ")).Read()
	tell(refusal(err))
}

func delay(addresses []string) {
	// Both sides beat while nothing else is said.
	beats := []func(*stomp.Conn) error{
		stomp.ConnOpt.HeartBeat(200*time.Millisecond, 200*time.Millisecond),
		stomp.ConnOpt.HeartBeatError(100 * time.Millisecond),
		stomp.ConnOpt.HeartBeatGracePeriodMultiplier(100),
	}
	conn := connect(addresses[0], beats...)
	subscription := subscribe(conn, "/queue/go-delayed", stomp.AckAuto)
	began := time.Now()
	send(conn, "/queue/go-delayed", "later", header("AMQ_SCHEDULED_DELAY", "1500"))
	send(conn, "/queue/go-delayed", "now")
	tell(bodies(subscription, 2))
	tell(time.Since(began).Milliseconds())
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func duplicate(addresses []string) {
	conn := connect(addresses[0])
	for range make([]struct{}, 2) {
		send(conn, "/queue/go-once", "once", header("_AMQ_DUPL_ID", "go"))
	}
	send(conn, "/queue/go-once", "end")
	subscription := subscribe(conn, "/queue/go-once", stomp.AckAuto)
	tell(bodies(subscription, 2))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func priority(addresses []string) {
	conn := connect(addresses[0])
	for _, level := range []string{"1", "9", "4", "9"} {
		send(conn, "/queue/go-levels", level, header("priority", level))
	}
	subscription := subscribe(conn, "/queue/go-levels", stomp.AckAuto)
	tell(bodies(subscription, 4))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

// group tells which subscription got which messages of each group.
func group(addresses []string) {
	conn := connect(addresses[0])
	one := subscribe(conn, "/queue/go-groups", stomp.AckClientIndividual)
	two := subscribe(conn, "/queue/go-groups", stomp.AckClientIndividual)
	for number := range make([]struct{}, 6) {
		name := string("ab"[number%2])
		send(conn, "/queue/go-groups", fmt.Sprint(name, number), header("JMSXGroupID", name))
	}
	got := map[string][]string{}
	for range make([]struct{}, 6) {
		var message *stomp.Message
		select {
		case message = <-one.C:
		case message = <-two.C:
		}
		must(message.Err)
		body := string(message.Body)
		place := message.Subscription.Id() + " " + body[:1]
		got[place] = append(got[place], body)
		must(conn.Ack(message))
	}
	all := [][]string{}
	for _, some := range got {
		all = append(all, some)
	}
	tell(all)
	must(conn.Disconnect())
}

func browse(addresses []string) {
	conn := connect(addresses[0])
	for _, body := range []string{"first", "second"} {
		send(conn, "/queue/go-browsed", body)
	}
	browser := subscribe(conn, "/queue/go-browsed", stomp.AckAuto, stomp.SubscribeOpt.Header("browser", "true"))
	tell(bodies(browser, 2))
	tell(next(browser).Header.Get("browser"))
	unsubscribe(browser)
	subscription := subscribe(conn, "/queue/go-browsed", stomp.AckAuto)
	tell(bodies(subscription, 2))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

// versions has each version's own ACK and NACK: the older ones name the message, not the delivery.
func versions(addresses []string) {
	for _, version := range []stomp.Version{stomp.V10, stomp.V11, stomp.V12} {
		conn := connect(addresses[0], stomp.ConnOpt.AcceptVersion(version))
		queue := "/queue/go-version-" + string(version)
		send(conn, queue, "one")
		send(conn, queue, "two")
		subscription := subscribe(conn, queue, stomp.AckClientIndividual)
		must(conn.Ack(next(subscription)))
		second := next(subscription)
		if version.SupportsNack() {
			must(conn.Nack(second))
			second = next(subscription)
		}
		must(conn.Ack(second))
		unsubscribe(subscription)
		send(conn, queue, "three")
		subscription = subscribe(conn, queue, stomp.AckAuto)
		tell(append([]string{string(conn.Version())}, string(next(subscription).Body)))
		must(conn.Disconnect())
	}
}

// destinations has two connections share a last value, a topic by a wildcard, a question with its answer
// and an order that is diverted.
func destinations(addresses []string) {
	conn, other := connect(addresses[0]), connect(addresses[0])
	for _, price := range []string{"1", "2"} {
		send(conn, "/queue/prices.go", price, header("_AMQ_LVQ_NAME", "gold"))
	}
	prices := subscribe(conn, "/queue/prices.go", stomp.AckAuto)
	tell(bodies(prices, 1))
	news := subscribe(conn, "/topic/news.go.#", stomp.AckAuto, stomp.SubscribeOpt.Header("no-local", "true"))
	send(conn, "/topic/news.go.eu", "own")
	send(other, "/topic/news.go.eu", "other")
	heard := next(news)
	tell([]string{string(heard.Body), heard.Destination})
	answers := subscribe(conn, "/temp-queue/answers", stomp.AckAuto)
	requests := subscribe(other, "/queue/requests.go", stomp.AckAuto)
	send(conn, "/queue/requests.go", "question", header("reply-to", "/temp-queue/answers"))
	send(other, next(requests).Header.Get("reply-to"), "answer")
	tell(bodies(answers, 1))
	send(conn, "/queue/orders.go", "order", header("kind", "go"))
	copied := next(subscribe(conn, "/queue/audit", stomp.AckAuto, selecting("kind = 'go'")))
	tell([]string{string(copied.Body), copied.Header.Get("_AMQ_ORIG_ADDRESS")})
	tell(bodies(subscribe(conn, "/queue/orders.go", stomp.AckAuto), 1))
	must(other.Disconnect())
	must(conn.Disconnect())
}

// takeover sends numbers to whichever node serves until each has its receipt, then takes them.
func takeover(addresses []string) {
	const count = 60
	conn := serving(addresses)
	for number := range make([]struct{}, count) {
		if number == count/2 {
			tell("half")
			fmt.Scanln() // until the node was killed
		}
		text := fmt.Sprint(number)
		for conn.Send("/queue/go-kept", "", []byte(text), header("_AMQ_DUPL_ID", "go "+text), receipt) != nil {
			conn.MustDisconnect()
			conn = serving(addresses)
		}
	}
	subscription := subscribe(conn, "/queue/go-kept", stomp.AckClientIndividual)
	// All are read before one is acknowledged: go-stomp writes nothing while it hands out what it has
	// read, and hands out nothing while its user waits for it to write.
	texts, messages := []string{}, []*stomp.Message{}
	for range make([]struct{}, count) {
		message := next(subscription)
		messages = append(messages, message)
		texts = append(texts, string(message.Body))
	}
	for _, message := range messages {
		must(conn.Ack(message))
	}
	tell(texts)
	unsubscribe(subscription)
	must(conn.Disconnect())
}

// serving connects to whichever of the nodes answers: go-stomp leaves that to its users. A Send that
// begins as the connection ends waits for its receipt in vain, holding what would tell it so.
func serving(addresses []string) *stomp.Conn {
	soon := stomp.ConnOpt.RcvReceiptTimeout(10 * time.Second)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for _, address := range addresses {
			if conn, err := dial(address, soon); err == nil {
				return conn
			}
		}
	}
	must(fmt.Errorf("none of %v serves", addresses))
	return nil
}
