# Connects to whichever node of a pair serves.
require 'stomp'

$stdout.sync = true

QUEUE = '/queue/orders'.freeze
NODES = ['127.0.0.1:61613', '127.0.0.1:61614'].freeze
# What a call raises when the connection is lost.
LOST = [SystemCallError, IOError, Stomp::Error::NoCurrentConnection, Stomp::Error::ConnectReadTimeout].freeze

# Tries one node after the other until one serves; a node that waits has no port open.
# STOMP_LOGIN and STOMP_PASSCODE are the login, where one is wanted.
#
# The gem can also reconnect by itself (reliable: true), but then it does not say which messages have
# no RECEIPT yet.
def connect(nodes)
  loop do
    nodes.each do |node|
      host, port = node.split(':')
      connection = Stomp::Connection.new(
        hosts: [{ login: ENV.fetch('STOMP_LOGIN', ''), passcode: ENV.fetch('STOMP_PASSCODE', ''),
                  host: host, port: port.to_i }],
        reliable: false, connect_headers: { 'accept-version' => '1.2', 'host' => host }
      )
      refuse(connection.connection_frame)
      puts "connected to #{node}"
      return connection
    rescue *LOST
      sleep 0.2
    end
  end
end

# Returns the next frame; raises IOError if the connection is lost.
def receive(connection)
  refuse(connection.receive)
end

# Ends the program if the frame is an ERROR: the broker refuses what it was asked for.
def refuse(frame)
  raise IOError, 'the connection is lost' if frame.nil?
  abort("the broker refused: #{frame.headers['message']}") if frame.command == 'ERROR'
  frame
end
