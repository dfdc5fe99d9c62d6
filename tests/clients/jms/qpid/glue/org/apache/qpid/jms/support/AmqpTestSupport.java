package org.apache.qpid.jms.support;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.Destination;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.Authenticator;
import java.net.PasswordAuthentication;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Vector;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.activemq.broker.jmx.BrokerViewMBean;
import org.apache.activemq.broker.jmx.QueueViewMBean;
import org.apache.activemq.broker.jmx.TopicViewMBean;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What the tests of qpid-jms extend, for a node that serves already: the property "node.url" is where
 * clients connect, "node.jolokia" where it tells what it has, by the names that Classic has for it.
 *
 * It has the user "system", whose password is "manager", and "guest", who may send nothing.
 *
 * Tests that start, stop or configure a broker, or ask what this one does not tell, are skipped.
 */
public class AmqpTestSupport extends QpidJmsTestSupport {
    protected static final Logger LOG = LoggerFactory.getLogger(AmqpTestSupport.class);
    private static final String URL = System.getProperty("node.url");
    private static final String JOLOKIA = System.getProperty("node.jolokia");
    private static final String LOGIN = "?jms.username=system&jms.password=manager";
    private static final HttpClient HTTP =
            HttpClient.newBuilder()
                    .authenticator(
                            new Authenticator() {
                                @Override
                                protected PasswordAuthentication getPasswordAuthentication() {
                                    return new PasswordAuthentication(
                                            "system", "manager".toCharArray());
                                }
                            })
                    .build();
    private static final Pattern VALUE = Pattern.compile("\"value\":(-?\\d+)");
    private static final Pattern STATUS = Pattern.compile("\"status\":(\\d+)");

    protected final Node brokerService = new Node();
    protected final Vector<Throwable> exceptions = new Vector<>();
    protected int numberOfMessages = 2000;
    protected Connection connection;
    protected String testMethodName;

    /** What tests ask of the broker itself. */
    public static class Node {
        public BrokerViewMBean getAdminView() {
            return proxy(BrokerViewMBean.class, "");
        }

        public boolean isPersistent() {
            return true;
        }
    }

    /** Each test has its own queue, named after it. */
    @BeforeEach
    public void setUp(TestInfo test) throws Exception {
        testMethodName =
                test.getTestClass().get().getSimpleName()
                        + "."
                        + test.getTestMethod().get().getName();
        exceptions.clear();
    }

    @AfterEach
    public void tearDown() throws Exception {
        if (connection != null) {
            connection.close();
        }
    }

    // --- what classes say of the broker that they want

    protected boolean isPersistent() {
        return true;
    }

    protected boolean isSchedulerSupport() {
        return true;
    }

    protected boolean isAddOpenWireConnector() {
        return false;
    }

    protected boolean isForceAsyncSends() {
        return false;
    }

    protected boolean isForceSyncSends() {
        return false;
    }

    protected boolean isForceAsyncAcks() {
        return false;
    }

    public String getAmqpConnectionURIOptions() {
        return "";
    }

    public void startPrimaryBroker() {}

    public void stopPrimaryBroker() {
        Assumptions.abort("it stops the broker");
    }

    public void restartPrimaryBroker() {
        Assumptions.abort("it starts the broker anew");
    }

    // --- connections

    public URI getBrokerAmqpConnectionURI() {
        return URI.create(URL + LOGIN + "&" + getAmqpConnectionURIOptions());
    }

    public Connection createAmqpConnection() throws Exception {
        return createAmqpConnectionFactory().createConnection();
    }

    public Connection createAmqpConnection(URI url) throws Exception {
        return createAmqpConnectionFactory(url).createConnection();
    }

    public ConnectionFactory createAmqpConnectionFactory() throws Exception {
        return createAmqpConnectionFactory(getBrokerAmqpConnectionURI());
    }

    public ConnectionFactory createAmqpConnectionFactory(URI url) throws Exception {
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        factory.setForceAsyncSend(isForceAsyncSends());
        factory.setForceSyncSend(isForceSyncSends());
        factory.setForceAsyncAcks(isForceAsyncAcks());
        return factory;
    }

    public ConnectionFactory createAmqpConnectionFactory(String user, String password)
            throws Exception {
        JmsConnectionFactory factory = new JmsConnectionFactory(getBrokerAmqpConnectionURI());
        factory.setUsername(user);
        factory.setPassword(password);
        return factory;
    }

    public Connection createAmqpConnection(String user, String password) throws Exception {
        return createAmqpConnectionFactory(user, password).createConnection();
    }

    public javax.jms.Connection createActiveMQConnection() {
        return Assumptions.abort("it connects by the protocol of Classic");
    }

    // --- messages

    public String getDestinationName() {
        return testMethodName;
    }

    public String getTestName() {
        return testMethodName;
    }

    public void sendMessages(Connection connection, Destination destination, int count)
            throws Exception {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(destination);
        for (int number = 1; number <= count; number++) {
            TextMessage message = session.createTextMessage("TextMessage: " + number);
            message.setIntProperty(MESSAGE_NUMBER, number);
            producer.send(message);
        }
        session.close();
    }

    protected void sendToAmqQueue(int count) throws Exception {
        try (Connection other = createAmqpConnection()) {
            Session session = other.createSession();
            sendMessages(other, session.createQueue(testMethodName), count);
        }
    }

    protected void sendToAmqTopic(int count) throws Exception {
        try (Connection other = createAmqpConnection()) {
            Session session = other.createSession();
            sendMessages(other, session.createTopic(testMethodName), count);
        }
    }

    // --- what the broker has

    protected BrokerViewMBean getProxyToBroker() {
        return proxy(BrokerViewMBean.class, "");
    }

    protected QueueViewMBean getProxyToQueue(String name) {
        return proxy(QueueViewMBean.class, ",destinationType=Queue,destinationName=" + name);
    }

    protected TopicViewMBean getProxyToTopic(String name) {
        return proxy(TopicViewMBean.class, ",destinationType=Topic,destinationName=" + name);
    }

    private static <T> T proxy(Class<T> view, String object) {
        return view.cast(
                Proxy.newProxyInstance(
                        view.getClassLoader(),
                        new Class<?>[] {view},
                        (self, method, arguments) -> asked(object, method)));
    }

    /** Return a number that the node tells; 0 of a queue or topic that nobody has used yet. */
    private static Object asked(String object, Method method) throws Exception {
        String mbean = "org.apache.activemq:type=Broker,brokerName=node" + object;
        String name = method.getName();
        boolean is_read = name.startsWith("get");
        String operation = is_read ? "read" : "exec";
        String what = is_read ? name.substring("get".length()) : name;
        URI url =
                URI.create(
                        JOLOKIA
                                + ("/" + operation + "/")
                                + URLEncoder.encode(mbean, StandardCharsets.UTF_8)
                                + ("/" + what));
        HttpRequest request =
                HttpRequest.newBuilder(url)
                        .header("Origin", url.getScheme() + "://" + url.getAuthority())
                        .build();
        String answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString()).body();
        Matcher status = STATUS.matcher(answer);
        if (!status.find() || status.group(1).equals("404") && object.isEmpty()) {
            Assumptions.abort("the node does not tell " + what);
        }
        Matcher value = VALUE.matcher(answer);
        long found = value.find() ? Long.parseLong(value.group(1)) : 0;
        if (method.getReturnType() == int.class) {
            return (int) found;
        }
        return method.getReturnType() == long.class ? found : null;
    }
}
