import java.util.Hashtable;
import java.util.UUID;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.NamingException;
import org.objectweb.jtests.jms.admin.Admin;

/**
 * Tells the suite what it finds at a node that serves already.
 *
 * Queues and topics are created by whoever uses them first. Each test gets new ones, so that nothing
 * is left in them by another.
 */
public class NodeAdmin implements Admin {
    /** The node's. */
    static String url;

    private final Hashtable<String, String> names = new Hashtable<>();

    public NodeAdmin() {
        names.put(
                Context.INITIAL_CONTEXT_FACTORY,
                "org.apache.qpid.jms.jndi.JmsInitialContextFactory");
    }

    @Override
    public String getName() {
        return "Orthia";
    }

    @Override
    public Context createContext() throws NamingException {
        return new InitialContext(names);
    }

    @Override
    public void createConnectionFactory(String name) {
        names.put("connectionfactory." + name, url);
    }

    @Override
    public void createQueueConnectionFactory(String name) {
        createConnectionFactory(name);
    }

    @Override
    public void createTopicConnectionFactory(String name) {
        createConnectionFactory(name);
    }

    @Override
    public void createQueue(String name) {
        names.put("queue." + name, name + "." + UUID.randomUUID());
    }

    @Override
    public void createTopic(String name) {
        names.put("topic." + name, name + "." + UUID.randomUUID());
    }

    @Override
    public void deleteQueue(String name) {
        names.remove("queue." + name);
    }

    @Override
    public void deleteTopic(String name) {
        names.remove("topic." + name);
    }

    @Override
    public void deleteConnectionFactory(String name) {
        names.remove("connectionfactory." + name);
    }

    @Override
    public void deleteQueueConnectionFactory(String name) {
        deleteConnectionFactory(name);
    }

    @Override
    public void deleteTopicConnectionFactory(String name) {
        deleteConnectionFactory(name);
    }

    @Override
    public void startServer() {}

    @Override
    public void stopServer() {}

    @Override
    public void start() {}

    @Override
    public void stop() {}
}
