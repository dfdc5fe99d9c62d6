# Sends orders to whichever node of a pair serves, and survives a takeover.
#
#   ruby producer.rb [COUNT [HOST:PORT ...]]
#
# An order is stored once its RECEIPT has come. Without a RECEIPT the producer connects to the other node
# and sends the order again; by its duplicate id the broker stores it once.
require 'securerandom'
require_relative 'pair'

PAUSE_SECONDS = 0.02 # between two orders, to leave time for killing a node

def send_order(connection, order, id)
  connection.publish(QUEUE, order, 'receipt' => id, '_AMQ_DUPL_ID' => id)
  nil until receive(connection).headers['receipt-id'] == id
end

count = ARGV.empty? ? 1000 : Integer(ARGV.shift)
nodes = ARGV.empty? ? NODES : ARGV
run = SecureRandom.uuid # the ids of another run are others
connection = connect(nodes)
count.times do |number|
  order = "order #{number}"
  begin
    send_order(connection, order, "#{run}-#{number}")
  rescue *LOST
    puts 'the connection is lost'
    connection = connect(nodes)
    retry
  end
  puts "stored #{order}"
  sleep PAUSE_SECONDS
end
connection.disconnect
