# What users of Ruby's stomp do, one scenario a run: ruby client.rb SCENARIO HOST:PORT [HOST:PORT].
# It prints a line of JSON for whatever the test is to judge. With two addresses it prints "takeover"
# amid what it does, and goes on at the second when it reads a line.
require 'json'
require 'stomp'

$stdout.sync = true
PATIENCE = 120
# Not with a letter behind the \: what the gem unescapes twice, it does itself.
AWKWARD = "a:b\\ c\nd ü"
BEATS = { 'heart-beat' => '500,500' }.freeze

class Refused < StandardError; end

# A connection with what came on it while something else was waited for.
class Session
  attr_reader :connection

  def initialize(address, passcode: ENV.fetch('STOMP_PASSCODE'), version: '1.2', headers: {})
    host, port = address.split(':')
    @came = []
    @receipts = 0
    wanted = version == '1.0' ? {} : { 'accept-version' => version, 'host' => host }
    @connection = Stomp::Connection.new(
      hosts: [{ login: ENV.fetch('STOMP_LOGIN'), passcode: passcode, host: host, port: port.to_i }],
      reliable: false, connect_headers: wanted.merge(headers), parse_timeout: PATIENCE
    )
    refuse(@connection.connection_frame)
  end

  def send(to, body, headers = {})
    await { |receipt| @connection.publish(to, body, headers.merge(receipt)) }
  end

  # Do something with a receipt, and wait for it.
  def await
    wanted = "r#{@receipts += 1}"
    yield({ 'receipt' => wanted })
    loop do
      frame = receive
      return if frame.command == 'RECEIPT' && frame.headers['receipt-id'] == wanted
      @came << frame
    end
  end

  def subscribe(to, ack = 'auto', headers = {})
    await { |receipt| @connection.subscribe(to, { 'id' => to, 'ack' => ack }.merge(headers, receipt)) }
  end

  def unsubscribe(to, headers = {})
    await { |receipt| @connection.unsubscribe(to, { 'id' => to }.merge(headers, receipt)) }
  end

  # What came while something else was waited for.
  def waiting
    @came.size
  end

  def next_message
    @came.shift || receive
  end

  def bodies(count)
    Array.new(count) { seen(next_message) }
  end

  def ack(message, headers = {})
    answer(:ack, message, headers)
  end

  def nack(message, headers = {})
    answer(:nack, message, headers)
  end

  def disconnect
    @connection.disconnect('receipt' => 'bye')
  end

  # Without a word: the node may be gone.
  def drop
    @connection.instance_variable_get(:@socket).close
  end

  private

  def answer(how, message, headers)
    named = @connection.protocol == '1.2' ? 'ack' : 'message-id'
    of = @connection.protocol == '1.1' ? { 'subscription' => message.headers['subscription'] } : {}
    await { |receipt| @connection.public_send(how, message.headers[named], of.merge(headers, receipt)) }
  end

  def receive
    refuse(@connection.receive)
  end

  def refuse(frame)
    raise IOError, 'the connection is gone' if frame.nil?
    raise Refused, frame.headers['message'] if frame.command == 'ERROR'
    frame
  end
end

def tell(what)
  puts JSON.generate(what)
end

def seen(message)
  { 'body' => message.body, 'redelivered' => message.headers['redelivered'] == 'true' }
end

def refusal
  yield
  ''
rescue Refused => e
  e.message
end

# Waits until the test has killed the node of the first address.
def await_takeover
  tell('takeover')
  $stdin.gets
end

# Returns the session, or one with the node that took over, if the test wants a takeover here.
def successor(session, addresses, **options)
  return session if addresses.one?

  await_takeover
  session.drop
  Session.new(addresses.last, **options)
end

def login(*addresses)
  successor(Session.new(addresses.first), addresses)
  tell(refusal { Session.new(addresses.last, passcode: 'wrong') })
  session = Session.new(addresses.last, headers: BEATS)
  tell(session.connection.protocol)
  session.disconnect
end

def sent(*addresses)
  session = Session.new(addresses.first)
  body = (0...256_000).map { |index| index % 256 }.pack('C*')
  session.send('/queue/rb-sent', body, 'content-type' => 'a/b', AWKWARD => AWKWARD)
  session.send('/queue/rb-sent', '')
  session.send('/queue/rb-sent', 'text', 'suppress_content_length' => true)
  session = successor(session, addresses)
  session.subscribe('/queue/rb-sent')
  message = session.next_message
  tell(message.body.b == body)
  tell([message.headers['content-type'], message.headers[AWKWARD]])
  tell(session.bodies(2))
  session.disconnect
end

def cumulative(*addresses)
  session = Session.new(addresses.first)
  5.times { |number| session.send('/queue/rb-cumulative', number.to_s) }
  session.subscribe('/queue/rb-cumulative', 'client')
  messages = Array.new(5) { session.next_message }
  session.ack(messages[2])
  session.unsubscribe('/queue/rb-cumulative')
  session = successor(session, addresses)
  session.subscribe('/queue/rb-cumulative', 'client-individual')
  tell(session.bodies(2))
  session.disconnect
end

def nack(*addresses)
  session = Session.new(addresses.first)
  queue = '/queue/rb-failing'
  session.send(queue, 'bad', 'kind' => 'rb')
  session.subscribe(queue, 'client-individual')
  message = session.next_message
  tell(seen(message))
  session.nack(message)
  unless addresses.one?
    session = successor(session, addresses)
    session.subscribe(queue, 'client-individual')
  end
  message = session.next_message
  tell(seen(message))
  session.nack(message)
  session.subscribe(ENV.fetch('STOMP_DEAD_LETTERS'), 'client-individual', 'selector' => "kind = 'rb'")
  message = session.next_message
  tell([message.body, message.headers['_AMQ_ORIG_QUEUE']])
  session.ack(message)
  session.disconnect
end

def transaction(*addresses)
  session = Session.new(addresses.first)
  queue = '/queue/rb-transacted'
  session.send(queue, 'first')
  session.subscribe(queue, 'client-individual')
  first = session.next_message
  session.connection.begin('aborted')
  session.send(queue, 'aborted', 'transaction' => 'aborted')
  session.ack(first, 'transaction' => 'aborted')
  session.await { |receipt| session.connection.abort('aborted', receipt) }
  session.connection.begin('committed')
  session.ack(first, 'transaction' => 'committed')
  session.send(queue, 'second', 'transaction' => 'committed')
  session.send(queue, 'beside')
  session.await { |receipt| session.connection.commit('committed', receipt) }
  unless addresses.one?
    session = successor(session, addresses)
    session.subscribe(queue, 'client-individual')
  end
  tell(session.bodies(2))
  session.disconnect
end

def durable(*addresses)
  desk = { headers: { 'client-id' => 'rb-desk' } }
  name = { 'durable-subscription-name' => 'rb-report' }
  topic = '/topic/rb-durable'
  session = Session.new(addresses.first, **desk)
  session.subscribe(topic, 'client-individual', name)
  session.unsubscribe(topic)
  session.send(topic, 'meanwhile')
  if addresses.one?
    session.disconnect
    session = Session.new(addresses.last, **desk)
  else
    session = successor(session, addresses, **desk)
  end
  session.subscribe(topic, 'client-individual', name)
  message = session.next_message
  tell(seen(message))
  session.ack(message)
  session.unsubscribe(topic, name)
  session.send(topic, 'to nobody')
  session.subscribe(topic, 'client-individual', name)
  session.send(topic, 'anew')
  tell(session.bodies(1))
  session.unsubscribe(topic, name)
  session.disconnect
  tell(refusal { Session.new(addresses.last).subscribe(topic, 'auto', name) })
end

def selector(*addresses)
  session = Session.new(addresses.first)
  queue = '/queue/rb-selected'
  offer = proc { |area, price| session.send(queue, "#{area} #{price}", 'area' => area, 'price' => price) }
  [%w[Asia 9], %w[Europe 1], %w[Europe 3]].each(&offer)
  session = successor(session, addresses)
  session.subscribe(queue, 'auto', 'selector' => "area = 'Europe' AND price > 2.5")
  [%w[Asia 8], %w[Europe 4]].each(&offer)
  tell(session.bodies(2))
  tell(refusal { session.subscribe("#{queue}2", 'auto', 'selector' => 'area = ') })
end

def delay(*addresses)
  session = Session.new(addresses.first, headers: BEATS)
  queue = '/queue/rb-delayed'
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  session.send(queue, 'later', 'AMQ_SCHEDULED_DELAY' => '1500')
  session.send(queue, 'now')
  tell(milliseconds_since(began))
  session = successor(session, addresses, headers: BEATS)
  session.subscribe(queue)
  tell(session.bodies(2))
  tell(milliseconds_since(began))
  session.disconnect
end

def milliseconds_since(began)
  (1000 * (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began)).to_i
end

def duplicate(*addresses)
  session = Session.new(addresses.first)
  session.send('/queue/rb-once', 'once', '_AMQ_DUPL_ID' => 'rb')
  session = successor(session, addresses)
  session.send('/queue/rb-once', 'once', '_AMQ_DUPL_ID' => 'rb')
  session.send('/queue/rb-once', 'end')
  session.subscribe('/queue/rb-once')
  tell(session.bodies(2))
  session.disconnect
end

def priority(*addresses)
  session = Session.new(addresses.first)
  ['1 a', '9 b', '4 c', '9 d'].each { |body| session.send('/queue/rb-levels', body, 'priority' => body[0]) }
  session = successor(session, addresses)
  session.subscribe('/queue/rb-levels')
  tell(session.bodies(4))
  session.disconnect
end

# Tells which subscription got which messages of each group.
def group(*addresses)
  session = Session.new(addresses.first)
  queue = '/queue/rb-groups'
  %w[one two].each { |id| session.subscribe(queue, 'client-individual', 'id' => id) }
  6.times do |number|
    name = %w[a b][number % 2]
    session.send(queue, "#{name}#{number}", 'JMSXGroupID' => name)
  end
  unless addresses.one?
    session = successor(session, addresses)
    %w[one two].each { |id| session.subscribe(queue, 'client-individual', 'id' => id) }
  end
  got = Hash.new { |all, place| all[place] = [] }
  6.times do
    message = session.next_message
    got[[message.headers['subscription'], message.body[0]]] << message.body
    session.ack(message)
  end
  tell(got.values)
  session.disconnect
end

def browse(*addresses)
  session = Session.new(addresses.first)
  queue = '/queue/rb-browsed'
  %w[first second third].each { |body| session.send(queue, body) }
  session = successor(session, addresses)
  session.subscribe(queue, 'auto', 'browser' => 'true')
  tell(session.bodies(3))
  tell(session.next_message.headers['browser'])
  session.unsubscribe(queue)
  session.subscribe(queue)
  tell(session.bodies(3))
  session.disconnect
end

# Each version has an ACK and NACK of its own: the older ones name the message, not the delivery.
def versions(*addresses)
  all = %w[1.0 1.1 1.2]
  all.each do |version|
    session = Session.new(addresses.first, version: version)
    %w[one two].each { |body| session.send("/queue/rb-version-#{version}", body) }
    session.disconnect
  end
  await_takeover unless addresses.one?
  all.each do |version|
    session = Session.new(addresses.last, version: version)
    queue = "/queue/rb-version-#{version}"
    session.subscribe(queue, 'client-individual')
    session.ack(session.next_message)
    second = session.next_message
    if version != '1.0'
      session.nack(second)
      second = session.next_message
    end
    session.ack(second)
    session.unsubscribe(queue)
    session.send(queue, 'three')
    session.subscribe(queue)
    tell([session.connection.protocol, session.next_message.body])
    session.disconnect
  end
end

# Two connections share a last value, an order that is diverted, a topic by a wildcard and a question
# with its answer.
def destinations(*addresses)
  session = Session.new(addresses.first)
  %w[1 2].each { |price| session.send('/queue/prices.rb', price, '_AMQ_LVQ_NAME' => 'gold') }
  session.send('/queue/orders.rb', 'order', 'kind' => 'rb')
  session = successor(session, addresses)
  other = Session.new(addresses.last)
  session.subscribe('/queue/prices.rb')
  tell(session.bodies(1))
  session.subscribe('/queue/audit', 'auto', 'selector' => "kind = 'rb'")
  copied = session.next_message
  tell([copied.body, copied.headers['_AMQ_ORIG_ADDRESS']])
  session.subscribe('/queue/orders.rb')
  tell(session.bodies(1))
  session.subscribe('/topic/news.rb.#', 'auto', 'no-local' => 'true')
  session.send('/topic/news.rb.eu', 'own')
  other.send('/topic/news.rb.eu', 'other')
  heard = session.next_message
  tell([heard.body, heard.headers['destination']])
  session.subscribe('/temp-queue/answers')
  other.subscribe('/queue/requests.rb')
  session.send('/queue/requests.rb', 'question', 'reply-to' => '/temp-queue/answers')
  other.send(other.next_message.headers['reply-to'], 'answer')
  tell(session.bodies(1))
  [other, session].each(&:disconnect)
end

# Tells which of the headers that were sent came.
def passing(*addresses)
  session = Session.new(addresses.first)
  headers = {
    'correlation-id' => 'c-1', 'reply-to' => '/queue/answers.rb', 'type' => 'order', 'priority' => '7',
    'expires' => in_milliseconds(3_600_000), 'persistent' => 'true',
    'traceparent' => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  }
  session.send('/queue/rb-passing', 'order', headers.merge('content-type' => 'text/plain'))
  session = successor(session, addresses)
  session.subscribe('/queue/rb-passing')
  message = session.next_message
  came = headers.select { |name, value| message.headers[name] == value }
  came.transform_values! { 'as it was sent' }
  %w[content-type destination-type].each { |name| came[name] = message.headers[name] }
  tell(came)
  session.disconnect
end

def in_milliseconds(count)
  (Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond) + count).to_s
end

# Finds what nobody took in time where it was moved to.
def expiry(*addresses)
  session = Session.new(addresses.first)
  session.send('/queue/rb-expiring', 'gone', 'expires' => in_milliseconds(1_000), 'kind' => 'rb')
  session.send('/queue/rb-expiring', 'kept')
  session = successor(session, addresses)
  session.subscribe('/queue/ExpiryQueue', 'auto', 'selector' => "kind = 'rb'")
  expired = session.next_message
  tell([expired.body, expired.headers['_AMQ_ORIG_QUEUE']])
  session.subscribe('/queue/rb-expiring')
  tell(session.bodies(1))
  session.disconnect
end

# One message at a time: what came before the first is acknowledged, and what after it.
def flow(*addresses)
  session = Session.new(addresses.first)
  %w[first second].each { |body| session.send('/queue/rb-flow', body) }
  session = successor(session, addresses)
  session.subscribe('/queue/rb-flow', 'client-individual', 'prefetch-count' => '1')
  first = session.next_message
  session.send('/queue/rb-after', 'whose receipt comes behind all that was on its way')
  tell([first.body, session.waiting])
  session.ack(first)
  second = session.next_message
  tell(second.body)
  session.ack(second)
  session.disconnect
end

# Says by headers what a name is, and names one queue of an address.
def routing(*addresses)
  session = Session.new(addresses.first)
  session.send('rb-typed', 'to one', 'destination-type' => 'ANYCAST')
  session = successor(session, addresses)
  session.subscribe('rb-typed::rb-typed')
  tell(session.bodies(1))
  many = { 'subscription-type' => 'MULTICAST' }
  %w[one two].each { |id| session.subscribe('rb-many', 'auto', many.merge('id' => id)) }
  session.send('rb-many', 'to each', 'destination-type' => 'MULTICAST')
  tell(session.bodies(2))
  tell(refusal { session.send('/queue/rb-typed', 'wrong', 'destination-type' => 'MULTICAST') })
end

# Tells how long a rejected message stayed away.
def redelivery(*addresses)
  session = Session.new(addresses.first)
  session.send('/queue/slow.rb', 'slow')
  session.subscribe('/queue/slow.rb', 'client-individual')
  message = session.next_message
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  session.nack(message)
  unless addresses.one?
    session = successor(session, addresses)
    session.subscribe('/queue/slow.rb', 'client-individual')
  end
  message = session.next_message
  tell(milliseconds_since(began))
  tell(seen(message))
  session.ack(message)
  session.disconnect
end

# Sends one more than the ring has room for. What went for that may come once more from a successor.
def ring(*addresses)
  session = Session.new(addresses.first)
  %w[1 2 3].each { |body| session.send('/queue/newest.rb', body) }
  session = successor(session, addresses)
  session.subscribe('/queue/newest.rb')
  came = session.bodies(1)
  came += session.bodies(1) until came.last['body'] == '3'
  tell(came)
  session.disconnect
end

# Sends numbers to whichever node serves until each has its receipt, then takes them.
def takeover(*addresses)
  count = 60
  session = serving(addresses)
  count.times do |number|
    if number == count / 2
      await_takeover
    end
    begin
      session.send('/queue/rb-kept', number.to_s, '_AMQ_DUPL_ID' => "rb #{number}")
    rescue SystemCallError, IOError, Refused, Stomp::Error::NoCurrentConnection, Stomp::Error::StompServerError
      session = serving(addresses)
      retry
    end
  end
  session.subscribe('/queue/rb-kept', 'client-individual')
  tell(Array.new(count) do
    message = session.next_message
    session.ack(message)
    message.body
  end)
  session.disconnect
end

# Connects to whichever of the nodes answers.
def serving(addresses)
  deadline = Time.now + PATIENCE
  while Time.now < deadline
    addresses.each do |address|
      return Session.new(address)
    rescue SystemCallError, IOError, Refused, Stomp::Error::ConnectReadTimeout
      sleep 0.05
    end
  end
  raise "none of #{addresses} serves"
end

method(ARGV.fetch(0)).call(*ARGV.drop(1))
