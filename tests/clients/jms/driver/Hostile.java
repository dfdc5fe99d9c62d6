import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.protonj2.test.driver.ProtonTestClient;
import org.apache.qpid.protonj2.test.driver.actions.AttachInjectAction;
import org.apache.qpid.protonj2.test.driver.actions.TransferInjectAction;

/**
 * Breaks the rules of AMQP at the node whose port is the argument, and expects the error that says so.
 *
 * After each sequence a client that keeps them is served: the node goes on. Prints "passed SEQUENCE" or
 * "failed SEQUENCE: WHY" for each.
 */
public class Hostile {
    private static final int SECONDS = 60;
    private static final int PAST_LAST = 1_024;
    private static final byte[] TAG = {0};
    private static final byte[] TEXT = {0, 0x53, 0x77, (byte) 0xa1, 1, 'a'};
    private static final byte[] UNKNOWN = {1, 2, 3};

    private interface Sequence {
        void queue(ProtonTestClient peer);
    }

    private static int port;
    private static final Map<String, Sequence> SEQUENCES = new LinkedHashMap<>();

    static {
        // --- of connections
        SEQUENCES.put(
                "begin before open",
                peer -> {
                    peer.queueClientSaslAnonymousConnect();
                    peer.remoteBegin().withNextOutgoingId(0).queue();
                    peer.expectOpen();
                    closed(peer, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "open twice",
                peer -> {
                    open(peer);
                    peer.remoteOpen().withContainerId("again").queue();
                    closed(peer, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "begin twice on a channel",
                peer -> {
                    begin(peer);
                    peer.remoteBegin().withNextOutgoingId(0).onChannel(0).queue();
                    closed(peer, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "begin above channel-max",
                peer -> {
                    open(peer);
                    peer.remoteBegin().withNextOutgoingId(0).onChannel(PAST_LAST).queue();
                    closed(peer, "amqp:connection:framing-error");
                });
        SEQUENCES.put(
                "attach on a channel without a session",
                peer -> {
                    begin(peer);
                    sender(peer, "s", 0).onChannel(3).queue();
                    closed(peer, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "frames after end",
                peer -> {
                    begin(peer);
                    peer.remoteEnd().queue();
                    peer.expectEnd();
                    sender(peer, "s", 0).onChannel(0).queue();
                    closed(peer, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "frames after close",
                peer -> {
                    begin(peer);
                    peer.remoteClose().queue();
                    sender(peer, "s", 0).onChannel(0).queue();
                    peer.expectClose();
                });
        SEQUENCES.put(
                "a frame that is longer than agreed",
                peer -> {
                    open(peer);
                    peer.remoteBytes().withBytes(new byte[] {0x7f, 0, 0, 0, 2, 0, 0, 0}).queue();
                    closed(peer, "amqp:connection:framing-error");
                });
        SEQUENCES.put(
                "a frame that is shorter than its head",
                peer -> {
                    open(peer);
                    peer.remoteBytes().withBytes(new byte[] {0, 0, 0, 8, 1, 0, 0, 0}).queue();
                    closed(peer, "amqp:connection:framing-error");
                });
        SEQUENCES.put(
                "a frame of SASL amid those of AMQP",
                peer -> {
                    open(peer);
                    peer.remoteBytes().withBytes(new byte[] {0, 0, 0, 8, 2, 1, 0, 0}).queue();
                    closed(peer, "amqp:connection:framing-error");
                });
        SEQUENCES.put(
                "a frame whose performative nobody knows",
                peer -> {
                    open(peer);
                    byte[] frame = {0, 0, 0, 12, 2, 0, 0, 0, 0, 0x53, 0x7f, 0x45};
                    peer.remoteBytes().withBytes(frame).queue();
                    closed(peer, "amqp:decode-error");
                });

        // --- of sessions
        SEQUENCES.put(
                "attach twice by one handle",
                peer -> {
                    sends(peer);
                    sender(peer, "other", 0).queue();
                    ended(peer, "amqp:session:handle-in-use");
                });
        SEQUENCES.put(
                "attach above handle-max",
                peer -> {
                    begin(peer);
                    sender(peer, "s", PAST_LAST).queue();
                    closed(peer, "amqp:connection:framing-error");
                });
        SEQUENCES.put(
                "transfer by a handle of no link",
                peer -> {
                    begin(peer);
                    transfer(peer, 7, 0).queue();
                    ended(peer, "amqp:session:unattached-handle");
                });
        SEQUENCES.put(
                "flow by a handle of no link",
                peer -> {
                    begin(peer);
                    peer.remoteFlow().withHandle(7).withLinkCredit(1).withDeliveryCount(0).queue();
                    ended(peer, "amqp:session:unattached-handle");
                });
        SEQUENCES.put(
                "detach twice",
                peer -> {
                    sends(peer);
                    peer.remoteDetach().withHandle(0).withClosed(true).queue();
                    peer.expectDetach().withClosed(true);
                    peer.remoteDetach().withHandle(0).withClosed(true).queue();
                    ended(peer, "amqp:session:unattached-handle");
                });

        // --- of links
        SEQUENCES.put(
                "attach twice by one name",
                peer -> {
                    sends(peer);
                    sender(peer, "s", 1).queue();
                    peer.expectAttach().withHandle(1);
                    detached(peer, 1, "amqp:session:errant-link");
                });
        SEQUENCES.put(
                "transfer by a link for messages to the client",
                peer -> {
                    receives(peer);
                    transfer(peer, 0, 0).queue();
                    detached(peer, 0, "amqp:not-allowed");
                });
        SEQUENCES.put(
                "transfer without a delivery id",
                peer -> {
                    sends(peer);
                    byte[] frame = {
                        0, 0, 0, 22, 2, 0, 0, 0, 0, 0x53, 0x14, (byte) 0xc0, 3, 1, 0x52, 0, //
                        0, 0x53, 0x77, (byte) 0xa1, 1, 'a',
                    };
                    peer.remoteBytes().withBytes(frame).queue();
                    detached(peer, 0, "amqp:invalid-field");
                });
        SEQUENCES.put(
                "a delivery that begins amid another",
                peer -> {
                    sends(peer);
                    transfer(peer, 0, 0).withMore(true).queue();
                    transfer(peer, 0, 1).queue();
                    detached(peer, 0, "amqp:invalid-field");
                });
        SEQUENCES.put(
                "a delivery that is resumed",
                peer -> {
                    sends(peer);
                    transfer(peer, 0, 0).withResume(true).queue();
                    detached(peer, 0, "amqp:not-implemented");
                });
        SEQUENCES.put(
                "a message that is none",
                peer -> {
                    sends(peer);
                    transfer(peer, 0, 0).withPayload(UNKNOWN).queue();
                    peer.expectDisposition()
                            .withFirst(0)
                            .withSettled(true)
                            .withState()
                            .rejected("amqp:decode-error");
                });
        SEQUENCES.put(
                "outcomes of deliveries that never were",
                peer -> {
                    receives(peer);
                    peer.remoteDisposition()
                            .withRole(true)
                            .withFirst(5)
                            .withLast(4_000_000_000L)
                            .withSettled(true)
                            .withState()
                            .accepted()
                            .queue();
                    peer.remoteDisposition()
                            .withRole(false)
                            .withFirst(0)
                            .withSettled(true)
                            .withState()
                            .accepted()
                            .queue();
                    peer.remoteDetach().withHandle(0).withClosed(true).queue();
                    peer.expectDetach().withClosed(true);
                });
        SEQUENCES.put(
                "work of a transaction that never was",
                peer -> {
                    sends(peer);
                    transfer(peer, 0, 0).withState().transactional().withTxnId(UNKNOWN).and().queue();
                    peer.expectDisposition()
                            .withFirst(0)
                            .withSettled(true)
                            .withState()
                            .rejected("amqp:transaction:unknown-id");
                });
        SEQUENCES.put(
                "commit of a transaction that never was",
                peer -> {
                    begin(peer);
                    peer.remoteAttach()
                            .ofSender()
                            .withName("c")
                            .withHandle(0)
                            .withInitialDeliveryCount(0)
                            .withSource()
                            .also()
                            .withCoordinator()
                            .also()
                            .queue();
                    peer.expectAttach();
                    peer.expectFlow();
                    peer.remoteDischarge()
                            .withTxnId(UNKNOWN)
                            .withHandle(0)
                            .withDeliveryId(0)
                            .withDeliveryTag(TAG)
                            .queue();
                    peer.expectDisposition()
                            .withFirst(0)
                            .withSettled(true)
                            .withState()
                            .rejected("amqp:transaction:unknown-id");
                });
    }

    // --- what comes before the breach

    private static void open(ProtonTestClient peer) {
        peer.queueClientSaslAnonymousConnect();
        peer.remoteOpen().withContainerId("hostile").queue();
        peer.expectOpen();
    }

    private static void begin(ProtonTestClient peer) {
        open(peer);
        peer.remoteBegin().withNextOutgoingId(0).queue();
        peer.expectBegin();
    }

    /** A link by which it sends, with credit. */
    private static void sends(ProtonTestClient peer) {
        begin(peer);
        sender(peer, "s", 0).queue();
        peer.expectAttach().withHandle(0);
        peer.expectFlow().withHandle(0);
    }

    private static void receives(ProtonTestClient peer) {
        begin(peer);
        peer.remoteAttach()
                .ofReceiver()
                .withName("r")
                .withHandle(0)
                .withSource()
                .withAddress("hostile")
                .also()
                .withTarget()
                .also()
                .queue();
        peer.expectAttach().withHandle(0);
    }

    private static AttachInjectAction sender(
            ProtonTestClient peer, String name, int handle) {
        return peer.remoteAttach()
                .ofSender()
                .withName(name)
                .withHandle(handle)
                .withInitialDeliveryCount(0)
                .withSource()
                .also()
                .withTarget()
                .withAddress("hostile")
                .also();
    }

    private static TransferInjectAction transfer(
            ProtonTestClient peer, int handle, int id) {
        return peer.remoteTransfer()
                .withHandle(handle)
                .withDeliveryId(id)
                .withDeliveryTag(TAG)
                .withPayload(TEXT);
    }

    // --- how the node answers

    private static void closed(ProtonTestClient peer, String condition) {
        peer.expectClose().withError(condition);
    }

    private static void ended(ProtonTestClient peer, String condition) {
        peer.expectEnd().withError(condition);
    }

    private static void detached(ProtonTestClient peer, int handle, String condition) {
        peer.expectDetach().withHandle(handle).withClosed(true).withError(condition);
    }

    private static void run(Sequence sequence) throws Exception {
        try (ProtonTestClient peer = new ProtonTestClient()) {
            sequence.queue(peer);
            peer.connect("127.0.0.1", port);
            peer.waitForScriptToComplete(SECONDS, TimeUnit.SECONDS);
        }
    }

    private static void keepRules(ProtonTestClient peer) {
        begin(peer);
        peer.remoteClose().queue();
        peer.expectClose();
    }

    public static void main(String[] arguments) {
        port = Integer.parseInt(arguments[0]);
        SEQUENCES.forEach(
                (name, sequence) -> {
                    try {
                        run(sequence);
                        run(Hostile::keepRules);
                        System.out.println("passed " + name);
                    } catch (Throwable error) {
                        System.out.println("failed " + name + ": " + error);
                    }
                });
        System.exit(0);
    }
}
