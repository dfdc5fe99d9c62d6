# What users of Ruby's stomp do, one scenario a run: ruby client.rb SCENARIO HOST:PORT... .
# It prints a line of JSON for whatever the test is to judge.
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

def login(address)
  tell(refusal { Session.new(address, passcode: 'wrong') })
  session = Session.new(address, headers: BEATS)
  tell(session.connection.protocol)
  session.disconnect
end

def sent(address)
  session = Session.new(address)
  body = (0...256_000).map { |index| index % 256 }.pack('C*')
  session.send('/queue/rb-sent', body, 'content-type' => 'a/b', AWKWARD => AWKWARD)
  session.send('/queue/rb-sent', '')
  session.send('/queue/rb-sent', 'text', 'suppress_content_length' => true)
  session.subscribe('/queue/rb-sent')
  message = session.next_message
  tell(message.body.b == body)
  tell([message.headers['content-type'], message.headers[AWKWARD]])
  tell(session.bodies(2))
  session.disconnect
end

def cumulative(address)
  session = Session.new(address)
  5.times { |number| session.send('/queue/rb-cumulative', number.to_s) }
  session.subscribe('/queue/rb-cumulative', 'client')
  messages = Array.new(5) { session.next_message }
  session.ack(messages[2])
  session.unsubscribe('/queue/rb-cumulative')
  session.subscribe('/queue/rb-cumulative', 'client-individual')
  tell(session.bodies(2))
  session.disconnect
end

def nack(address)
  session = Session.new(address)
  session.send('/queue/rb-failing', 'bad', 'kind' => 'rb')
  session.subscribe('/queue/rb-failing', 'client-individual')
  2.times do
    message = session.next_message
    tell(seen(message))
    session.nack(message)
  end
  session.subscribe(ENV.fetch('STOMP_DEAD_LETTERS'), 'client-individual', 'selector' => "kind = 'rb'")
  message = session.next_message
  tell([message.body, message.headers['_AMQ_ORIG_QUEUE']])
  session.ack(message)
  session.disconnect
end

def transaction(address)
  session = Session.new(address)
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
  tell(session.bodies(2))
  session.disconnect
end

def durable(address)
  desk = { headers: { 'client-id' => 'rb-desk' } }
  name = { 'durable-subscription-name' => 'rb-report' }
  topic = '/topic/rb-durable'
  session = Session.new(address, **desk)
  session.subscribe(topic, 'client-individual', name)
  session.unsubscribe(topic)
  session.send(topic, 'meanwhile')
  session.disconnect
  session = Session.new(address, **desk)
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
  tell(refusal { Session.new(address).subscribe(topic, 'auto', name) })
end

def selector(address)
  session = Session.new(address)
  queue = '/queue/rb-selected'
  session.subscribe(queue, 'auto', 'selector' => "area = 'Europe' AND price > 2.5")
  [%w[Asia 9], %w[Europe 1], %w[Europe 3]].each do |area, price|
    session.send(queue, "#{area} #{price}", 'area' => area, 'price' => price)
  end
  tell(session.bodies(1))
  tell(refusal { session.subscribe("#{queue}2", 'auto', 'selector' => 'area = ') })
end

def delay(address)
  session = Session.new(address, headers: BEATS)
  queue = '/queue/rb-delayed'
  session.subscribe(queue)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  session.send(queue, 'later', 'AMQ_SCHEDULED_DELAY' => '1500')
  session.send(queue, 'now')
  tell(session.bodies(2))
  tell((1000 * (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began)).to_i)
  session.disconnect
end

def duplicate(address)
  session = Session.new(address)
  2.times { session.send('/queue/rb-once', 'once', '_AMQ_DUPL_ID' => 'rb') }
  session.send('/queue/rb-once', 'end')
  session.subscribe('/queue/rb-once')
  tell(session.bodies(2))
  session.disconnect
end

def priority(address)
  session = Session.new(address)
  %w[1 9 4 9].each { |level| session.send('/queue/rb-levels', level, 'priority' => level) }
  session.subscribe('/queue/rb-levels')
  tell(session.bodies(4))
  session.disconnect
end

# Tells which subscription got which messages of each group.
def group(address)
  session = Session.new(address)
  queue = '/queue/rb-groups'
  %w[one two].each { |id| session.subscribe(queue, 'client-individual', 'id' => id) }
  6.times do |number|
    name = %w[a b][number % 2]
    session.send(queue, "#{name}#{number}", 'JMSXGroupID' => name)
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

def browse(address)
  session = Session.new(address)
  queue = '/queue/rb-browsed'
  %w[first second].each { |body| session.send(queue, body) }
  session.subscribe(queue, 'auto', 'browser' => 'true')
  tell(session.bodies(2))
  tell(session.next_message.headers['browser'])
  session.unsubscribe(queue)
  session.subscribe(queue)
  tell(session.bodies(2))
  session.disconnect
end

# Each version has an ACK and NACK of its own: the older ones name the message, not the delivery.
def versions(address)
  %w[1.0 1.1 1.2].each do |version|
    session = Session.new(address, version: version)
    queue = "/queue/rb-version-#{version}"
    session.send(queue, 'one')
    session.send(queue, 'two')
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

# Two connections share a last value, a topic by a wildcard, a question with its answer and an order
# that is diverted.
def destinations(address)
  session, other = Array.new(2) { Session.new(address) }
  %w[1 2].each { |price| session.send('/queue/prices.rb', price, '_AMQ_LVQ_NAME' => 'gold') }
  session.subscribe('/queue/prices.rb')
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
  session.send('/queue/orders.rb', 'order', 'kind' => 'rb')
  session.subscribe('/queue/audit', 'auto', 'selector' => "kind = 'rb'")
  copied = session.next_message
  tell([copied.body, copied.headers['_AMQ_ORIG_ADDRESS']])
  session.subscribe('/queue/orders.rb')
  tell(session.bodies(1))
  [other, session].each(&:disconnect)
end

# Sends numbers to whichever node serves until each has its receipt, then takes them.
def takeover(*addresses)
  count = 60
  session = serving(addresses)
  count.times do |number|
    if number == count / 2
      tell('half')
      $stdin.gets # until the node was killed
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
