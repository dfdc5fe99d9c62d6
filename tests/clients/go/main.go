// What users of go-stomp do, one scenario a run: client SCENARIO ADDRESS [ADDRESS] .
// It prints a line of JSON for whatever the test is to judge. With two addresses it prints "takeover"
// amid what it does, and goes on at the second when it reads a line.
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
		"destinations": destinations, "passing": passing, "expiry": expiry, "flow": flow, "routing": routing,
		"redelivery": redelivery, "ring": ring, "takeover": takeover,
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

// moves tells whether another node takes over amid a scenario.
func moves(addresses []string) bool {
	return len(addresses) > 1
}

// awaitTakeover returns when the test has killed the node of the first address.
func awaitTakeover() {
	tell("takeover")
	fmt.Scanln()
}

// successor returns a connection to whichever node serves once the test had its takeover, if it wants one.
func successor(conn *stomp.Conn, addresses []string, options ...func(*stomp.Conn) error) *stomp.Conn {
	if !moves(addresses) {
		return conn
	}
	awaitTakeover()
	conn.MustDisconnect()
	return connect(last(addresses), options...)
}

func last(addresses []string) string {
	return addresses[len(addresses)-1]
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
	successor(connect(addresses[0]), addresses)
	_, err := dial(last(addresses), stomp.ConnOpt.Login(os.Getenv("STOMP_LOGIN"), "wrong"))
	tell(refusal(err))
	conn := connect(last(addresses), stomp.ConnOpt.HeartBeat(time.Second, time.Second),
		stomp.ConnOpt.HeartBeatGracePeriodMultiplier(100))
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
	conn = successor(conn, addresses)
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
	send(conn, "/queue/go-after", "whose receipt comes once the acknowledgement is stored")
	conn = successor(conn, addresses)
	again := subscribe(conn, "/queue/go-cumulative", stomp.AckClientIndividual)
	tell(bodies(again, 2))
	unsubscribe(again)
	must(conn.Disconnect())
}

func nack(addresses []string) {
	conn := connect(addresses[0])
	send(conn, "/queue/go-failing", "bad", header("kind", "go"))
	failing := subscribe(conn, "/queue/go-failing", stomp.AckClientIndividual)
	message := next(failing)
	tell(as(message))
	must(conn.Nack(message))
	send(conn, "/queue/go-after", "whose receipt comes once the attempt is counted")
	if moves(addresses) {
		conn = successor(conn, addresses)
		failing = subscribe(conn, "/queue/go-failing", stomp.AckClientIndividual)
	}
	message = next(failing)
	tell(as(message))
	must(conn.Nack(message))
	dead := subscribe(conn, os.Getenv("STOMP_DEAD_LETTERS"), stomp.AckClientIndividual, selecting("kind = 'go'"))
	message = next(dead)
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
	if moves(addresses) {
		conn = successor(conn, addresses)
		subscription = subscribe(conn, "/queue/go-transacted", stomp.AckClientIndividual)
	}
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
	if moves(addresses) {
		conn = successor(conn, addresses, desk)
	} else {
		must(conn.Disconnect())
		conn = connect(addresses[0], desk)
	}
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
	conn = connect(last(addresses))
	_, err := subscribe(conn, "/topic/go-durable", stomp.AckAuto, name).Read()
	tell(refusal(err))
}

func selector(addresses []string) {
	conn := connect(addresses[0])
	european := selecting("area = 'Europe' AND price > 2.5")
	offer := func(area, price string) {
		send(conn, "/queue/go-selected", area+" "+price, header("area", area), header("price", price))
	}
	offer("Asia", "9")
	offer("Europe", "1")
	offer("Europe", "3")
	conn = successor(conn, addresses)
	subscription := subscribe(conn, "/queue/go-selected", stomp.AckAuto, european)
	offer("Asia", "8")
	offer("Europe", "4")
	tell(bodies(subscription, 2))
	_, err := subscribe(conn, "/queue/go-selected", stomp.AckAuto, selecting("area = ")).Read()
	tell(refusal(err))
}

func delay(addresses []string) {
	// Both sides beat while nothing else is said.
	beats := []func(*stomp.Conn) error{
		stomp.ConnOpt.HeartBeat(200*time.Millisecond, 200*time.Millisecond),
		stomp.ConnOpt.HeartBeatError(100 * time.Millisecond),
		stomp.ConnOpt.HeartBeatGracePeriodMultiplier(500),
	}
	conn := connect(addresses[0], beats...)
	began := time.Now()
	send(conn, "/queue/go-delayed", "later", header("AMQ_SCHEDULED_DELAY", "1500"))
	send(conn, "/queue/go-delayed", "now")
	tell(time.Since(began).Milliseconds())
	conn = successor(conn, addresses, beats...)
	subscription := subscribe(conn, "/queue/go-delayed", stomp.AckAuto)
	tell(bodies(subscription, 2))
	tell(time.Since(began).Milliseconds())
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func duplicate(addresses []string) {
	conn := connect(addresses[0])
	send(conn, "/queue/go-once", "once", header("_AMQ_DUPL_ID", "go"))
	conn = successor(conn, addresses)
	send(conn, "/queue/go-once", "once", header("_AMQ_DUPL_ID", "go"))
	send(conn, "/queue/go-once", "end")
	subscription := subscribe(conn, "/queue/go-once", stomp.AckAuto)
	tell(bodies(subscription, 2))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

func priority(addresses []string) {
	conn := connect(addresses[0])
	for _, body := range []string{"1 a", "9 b", "4 c", "9 d"} {
		send(conn, "/queue/go-levels", body, header("priority", body[:1]))
	}
	conn = successor(conn, addresses)
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
	if moves(addresses) {
		conn = successor(conn, addresses)
		one = subscribe(conn, "/queue/go-groups", stomp.AckClientIndividual)
		two = subscribe(conn, "/queue/go-groups", stomp.AckClientIndividual)
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
	for _, body := range []string{"first", "second", "third"} {
		send(conn, "/queue/go-browsed", body)
	}
	conn = successor(conn, addresses)
	browser := subscribe(conn, "/queue/go-browsed", stomp.AckAuto, stomp.SubscribeOpt.Header("browser", "true"))
	tell(bodies(browser, 3))
	tell(next(browser).Header.Get("browser"))
	unsubscribe(browser)
	subscription := subscribe(conn, "/queue/go-browsed", stomp.AckAuto)
	tell(bodies(subscription, 3))
	unsubscribe(subscription)
	must(conn.Disconnect())
}

// versions has each version's own ACK and NACK: the older ones name the message, not the delivery.
func versions(addresses []string) {
	all := []stomp.Version{stomp.V10, stomp.V11, stomp.V12}
	for _, version := range all {
		conn := connect(addresses[0], stomp.ConnOpt.AcceptVersion(version))
		send(conn, "/queue/go-version-"+string(version), "one")
		send(conn, "/queue/go-version-"+string(version), "two")
		must(conn.Disconnect())
	}
	if moves(addresses) {
		awaitTakeover()
	}
	for _, version := range all {
		conn := connect(last(addresses), stomp.ConnOpt.AcceptVersion(version))
		queue := "/queue/go-version-" + string(version)
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

// destinations has two connections share a last value, an order that is diverted, a topic by a wildcard
// and a question with its answer.
func destinations(addresses []string) {
	conn := connect(addresses[0])
	for _, price := range []string{"1", "2"} {
		send(conn, "/queue/prices.go", price, header("_AMQ_LVQ_NAME", "gold"))
	}
	send(conn, "/queue/orders.go", "order", header("kind", "go"))
	conn = successor(conn, addresses)
	other := connect(last(addresses))
	tell(bodies(subscribe(conn, "/queue/prices.go", stomp.AckAuto), 1))
	copied := next(subscribe(conn, "/queue/audit", stomp.AckAuto, selecting("kind = 'go'")))
	tell([]string{string(copied.Body), copied.Header.Get("_AMQ_ORIG_ADDRESS")})
	tell(bodies(subscribe(conn, "/queue/orders.go", stomp.AckAuto), 1))
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
	must(other.Disconnect())
	must(conn.Disconnect())
}

// passing tells which of the headers that were sent came.
func passing(addresses []string) {
	conn := connect(addresses[0])
	expires := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	headers := [][]string{
		{"correlation-id", "c-1"}, {"reply-to", "/queue/answers.go"}, {"type", "order"}, {"priority", "7"},
		{"expires", expires}, {"persistent", "true"},
		{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
	options := []func(*frame.Frame) error{}
	for _, one := range headers {
		options = append(options, header(one[0], one[1]))
	}
	send(conn, "/queue/go-passing", "order", options...)
	conn = successor(conn, addresses)
	message := next(subscribe(conn, "/queue/go-passing", stomp.AckAuto))
	came := map[string]string{}
	for _, one := range headers {
		if message.Header.Get(one[0]) == one[1] {
			came[one[0]] = "as it was sent"
		}
	}
	came["content-type"] = message.ContentType
	came["destination-type"] = message.Header.Get("destination-type")
	tell(came)
	must(conn.Disconnect())
}

// expiry finds what nobody took in time where it was moved to.
func expiry(addresses []string) {
	conn := connect(addresses[0])
	soon := fmt.Sprint(time.Now().Add(time.Second).UnixMilli())
	send(conn, "/queue/go-expiring", "gone", header("expires", soon), header("kind", "go"))
	send(conn, "/queue/go-expiring", "kept")
	conn = successor(conn, addresses)
	expired := next(subscribe(conn, "/queue/ExpiryQueue", stomp.AckAuto, selecting("kind = 'go'")))
	tell([]string{string(expired.Body), expired.Header.Get("_AMQ_ORIG_QUEUE")})
	tell(bodies(subscribe(conn, "/queue/go-expiring", stomp.AckAuto), 1))
	must(conn.Disconnect())
}

// flow has one message at a time: what came before the first is acknowledged, and what after it.
func flow(addresses []string) {
	conn := connect(addresses[0])
	for _, body := range []string{"first", "second"} {
		send(conn, "/queue/go-flow", body)
	}
	conn = successor(conn, addresses)
	one := stomp.SubscribeOpt.Header("prefetch-count", "1")
	subscription := subscribe(conn, "/queue/go-flow", stomp.AckClientIndividual, one)
	first := next(subscription)
	send(conn, "/queue/go-after", "whose receipt comes behind all that was on its way")
	tell([]any{string(first.Body), len(subscription.C)})
	must(conn.Ack(first))
	second := next(subscription)
	tell(string(second.Body))
	must(conn.Ack(second))
	must(conn.Disconnect())
}

// routing says by headers what a name is, and names one queue of an address.
func routing(addresses []string) {
	conn := connect(addresses[0])
	as := func(what string) func(*frame.Frame) error {
		return stomp.SubscribeOpt.Header("subscription-type", what)
	}
	send(conn, "go-typed", "to one", header("destination-type", "ANYCAST"))
	conn = successor(conn, addresses)
	tell(bodies(subscribe(conn, "go-typed::go-typed", stomp.AckAuto), 1))
	one := subscribe(conn, "go-many", stomp.AckAuto, as("MULTICAST"))
	two := subscribe(conn, "go-many", stomp.AckAuto, as("MULTICAST"))
	send(conn, "go-many", "to each", header("destination-type", "MULTICAST"))
	tell(append(bodies(one, 1), bodies(two, 1)...))
	tell(refusal(conn.Send("/queue/go-typed", "", []byte("wrong"), header("destination-type", "MULTICAST"), receipt)))
}

// redelivery tells how long a rejected message stayed away.
func redelivery(addresses []string) {
	conn := connect(addresses[0])
	send(conn, "/queue/slow.go", "slow")
	subscription := subscribe(conn, "/queue/slow.go", stomp.AckClientIndividual)
	message := next(subscription)
	began := time.Now()
	must(conn.Nack(message))
	send(conn, "/queue/go-after", "whose receipt comes once the attempt is counted")
	if moves(addresses) {
		conn = successor(conn, addresses)
		subscription = subscribe(conn, "/queue/slow.go", stomp.AckClientIndividual)
	}
	message = next(subscription)
	tell(time.Since(began).Milliseconds())
	tell(as(message))
	must(conn.Ack(message))
	must(conn.Disconnect())
}

// ring sends one more than the ring has room for. What went for that may come once more from a successor.
func ring(addresses []string) {
	conn := connect(addresses[0])
	for _, body := range []string{"1", "2", "3"} {
		send(conn, "/queue/newest.go", body)
	}
	conn = successor(conn, addresses)
	subscription := subscribe(conn, "/queue/newest.go", stomp.AckAuto)
	came := bodies(subscription, 1)
	for came[len(came)-1].Body != "3" {
		came = append(came, bodies(subscription, 1)...)
	}
	tell(came)
	must(conn.Disconnect())
}

// takeover sends numbers to whichever node serves until each has its receipt, then takes them.
func takeover(addresses []string) {
	const count = 60
	conn := serving(addresses)
	for number := range make([]struct{}, count) {
		if number == count/2 {
			awaitTakeover()
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
