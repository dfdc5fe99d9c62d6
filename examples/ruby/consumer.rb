# Takes orders from whichever node of a pair serves, and survives a takeover.
#
#   ruby consumer.rb [HOST:PORT ...]
#
# An order is acknowledged after it is worked on. An order that was not yet acknowledged when a node died
# comes again from the other one, so the consumer must recognise it. Ctrl-C ends it.
require_relative 'pair'

# Works on orders until the connection is lost, which raises one of LOST.
def work(connection, done)
  connection.subscribe(QUEUE, 'id' => 'orders', 'ack' => 'client-individual')
  loop do
    message = receive(connection)
    order = message.body
    if done.include?(order)
      puts "again #{order}"
    else
      done[order] = true
      puts "got #{order}" # the work on the order goes here
    end
    connection.ack(message.headers['ack'])
  end
end

nodes = ARGV.empty? ? NODES : ARGV
done = {} # a real consumer keeps it where it keeps what comes of its work
begin
  loop do
    work(connect(nodes), done)
  rescue *LOST
    puts 'the connection is lost'
  end
rescue Interrupt
  exit
end
