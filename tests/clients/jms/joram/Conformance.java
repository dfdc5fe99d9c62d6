import java.util.Arrays;
import java.util.List;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.objectweb.jtests.jms.conform.connection.ConnectionTest;
import org.objectweb.jtests.jms.conform.connection.TopicConnectionTest;
import org.objectweb.jtests.jms.conform.message.MessageBodyTest;
import org.objectweb.jtests.jms.conform.message.MessageDefaultTest;
import org.objectweb.jtests.jms.conform.message.MessageTypeTest;
import org.objectweb.jtests.jms.conform.message.headers.MessageHeaderTest;
import org.objectweb.jtests.jms.conform.message.properties.JMSXPropertyTest;
import org.objectweb.jtests.jms.conform.message.properties.MessagePropertyConversionTest;
import org.objectweb.jtests.jms.conform.message.properties.MessagePropertyTest;
import org.objectweb.jtests.jms.conform.queue.QueueBrowserTest;
import org.objectweb.jtests.jms.conform.queue.TemporaryQueueTest;
import org.objectweb.jtests.jms.conform.selector.SelectorSyntaxTest;
import org.objectweb.jtests.jms.conform.selector.SelectorTest;
import org.objectweb.jtests.jms.conform.session.QueueSessionTest;
import org.objectweb.jtests.jms.conform.session.SessionTest;
import org.objectweb.jtests.jms.conform.session.TopicSessionTest;
import org.objectweb.jtests.jms.conform.session.UnifiedSessionTest;
import org.objectweb.jtests.jms.conform.topic.TemporaryTopicTest;
import org.objectweb.jtests.jms.framework.JMSTestCase;

/**
 * Runs the suite, or the classes of it that are named, at the node whose URL is the first argument.
 *
 * Prints "passed TEST" or "failed TEST: WHY" for each test.
 */
public class Conformance {
    private static final Class<?>[] SUITE = {
        ConnectionTest.class,
        TopicConnectionTest.class,
        MessageBodyTest.class,
        MessageDefaultTest.class,
        MessageTypeTest.class,
        MessageHeaderTest.class,
        JMSXPropertyTest.class,
        MessagePropertyConversionTest.class,
        MessagePropertyTest.class,
        QueueBrowserTest.class,
        TemporaryQueueTest.class,
        SelectorSyntaxTest.class,
        SelectorTest.class,
        QueueSessionTest.class,
        SessionTest.class,
        TopicSessionTest.class,
        UnifiedSessionTest.class,
        TemporaryTopicTest.class,
    };

    /** Prints what becomes of each test. */
    private static class Printer extends RunListener {
        private boolean failed;

        @Override
        public void testStarted(Description test) {
            failed = false;
        }

        @Override
        public void testFailure(Failure failure) {
            failed = true;
            String name = failure.getDescription().getDisplayName();
            System.out.println("failed " + name + ": " + failure.getTrace().replace('\n', '|'));
        }

        @Override
        public void testFinished(Description test) {
            if (!failed) {
                System.out.println("passed " + test.getDisplayName());
            }
        }
    }

    public static void main(String[] arguments) {
        JMSTestCase.startServer = false;
        NodeAdmin.url = arguments[0];
        List<String> named = Arrays.asList(arguments).subList(1, arguments.length);
        JUnitCore runner = new JUnitCore();
        runner.addListener(new Printer());
        for (Class<?> one : SUITE) {
            if (named.isEmpty() || named.contains(one.getSimpleName())) {
                runner.run(one);
            }
        }
        System.exit(0);
    }
}
