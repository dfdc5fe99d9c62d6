package shop;

import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.messaginghub.pooled.jms.JmsPoolConnectionFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.jms.autoconfigure.DefaultJmsListenerContainerFactoryConfigurer;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Primary;
import org.springframework.jms.JmsException;
import org.springframework.jms.annotation.JmsListener;
import org.springframework.jms.config.DefaultJmsListenerContainerFactory;
import org.springframework.jms.config.JmsListenerEndpointRegistry;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.stereotype.Component;

/**
 * A Spring Boot application as users write it, with qpid-jms and pooled-jms.
 *
 * With --scenario=features it does once what an application does, with --scenario=properties what the
 * properties of Spring Boot say. With --scenario=flood it moves --messages from one queue to another,
 * while a node is killed. It prints what happened.
 */
@SpringBootApplication
public class Orders {
    private static final int SECONDS = 120;
    private static final int SENDERS = 8;
    private static final int QUIET_MS = 10_000;

    public static void main(String[] arguments) {
        System.exit(SpringApplication.exit(SpringApplication.run(Orders.class, arguments)));
    }

    @Bean
    @Primary
    ConnectionFactory pool(
            @Value("${broker.url}") String url, @Value("${broker.pooled:true}") boolean pooled) {
        if (!pooled) {
            return new JmsConnectionFactory(url);
        }
        JmsPoolConnectionFactory pool = new JmsPoolConnectionFactory();
        pool.setConnectionFactory(new JmsConnectionFactory(url));
        pool.setMaxConnections(3);
        return pool;
    }

    /** Durable subscriptions: their connection has a client id, so it is none of the pool. */
    @Bean
    DefaultJmsListenerContainerFactory durable(
            DefaultJmsListenerContainerFactoryConfigurer configurer,
            @Value("${broker.url}") String url) {
        DefaultJmsListenerContainerFactory factory = new DefaultJmsListenerContainerFactory();
        configurer.configure(factory, new JmsConnectionFactory(url));
        factory.setPubSubDomain(true);
        factory.setSubscriptionDurable(true);
        factory.setClientId("shop");
        return factory;
    }

    @Bean
    CommandLineRunner scenario(
            @Value("${scenario}") String scenario,
            @Value("${messages:0}") int messages,
            JmsTemplate template,
            JmsListenerEndpointRegistry listeners) {
        return arguments -> {
            if (scenario.equals("features")) {
                features(template, listeners);
            } else if (scenario.equals("properties")) {
                properties(template);
            } else {
                flood(template, listeners, messages);
            }
        };
    }

    // --- what an application does

    private static final BlockingQueue<String> EVENTS = new LinkedBlockingQueue<>();

    private static void expect(String... events) throws InterruptedException {
        for (String expected : events) {
            String event = EVENTS.poll(SECONDS, TimeUnit.SECONDS);
            if (!expected.equals(event)) {
                throw new IllegalStateException("expected " + expected + ", found " + event);
            }
            System.out.println(event);
        }
    }

    /** What listens in the scenario of features. */
    @Component
    @ConditionalOnProperty(name = "scenario", havingValue = "features")
    static class Shop {
        private final JmsTemplate template;

        Shop(JmsTemplate template) {
            this.template = template;
        }

        @JmsListener(destination = "quotes")
        String quote(String what) {
            return "quote for " + what;
        }

        /** Its delivery, and what it sends, are one transaction, which fails once. */
        @JmsListener(destination = "orders")
        void order(String what, @Header("JMSXDeliveryCount") int attempt) {
            template.convertAndSend("done", what + " by attempt " + attempt);
            EVENTS.add("order " + what + " attempt " + attempt);
            if (what.equals("b") && attempt == 1) {
                throw new IllegalStateException("out of stock");
            }
        }

        @JmsListener(destination = "parts", selector = "colour = 'red' AND weight > 2")
        void part(String what) {
            EVENTS.add("part " + what);
        }

        @JmsListener(
                id = "news",
                destination = "news",
                subscription = "readers",
                containerFactory = "durable")
        void news(String what) {
            EVENTS.add("news " + what);
        }
    }

    private static void features(JmsTemplate template, JmsListenerEndpointRegistry listeners)
            throws Exception {
        Message reply = template.sendAndReceive("quotes", one -> one.createTextMessage("tea"));
        System.out.println("reply " + (reply == null ? null : reply.getBody(String.class)));

        template.convertAndSend("orders", "a");
        expect("order a attempt 1");
        template.convertAndSend("orders", "b");
        expect("order b attempt 1", "order b attempt 2");
        for (int left = 2; left > 0; left--) {
            System.out.println("done " + template.receiveAndConvert("done"));
        }
        template.setReceiveTimeout(100);
        System.out.println("done " + template.receiveAndConvert("done"));

        for (String colour : List.of("red", "blue")) {
            for (int weight : List.of(2, 3)) {
                template.convertAndSend(
                        "parts",
                        colour + weight,
                        one -> {
                            one.setStringProperty("colour", colour);
                            one.setIntProperty("weight", weight);
                            return one;
                        });
            }
        }
        expect("part red3");
        List<String> seen =
                template.browse(
                        "parts",
                        (session, browser) -> {
                            List<String> found = new ArrayList<>();
                            Enumeration<?> all = browser.getEnumeration();
                            while (all.hasMoreElements()) {
                                found.add(((Message) all.nextElement()).getBody(String.class));
                            }
                            return found;
                        });
        System.out.println("browsed " + seen);
        System.out.println("selected " + template.receiveSelectedAndConvert("parts", "weight = 3"));

        JmsTemplate topics = new JmsTemplate(template.getConnectionFactory());
        topics.setPubSubDomain(true);
        topics.convertAndSend("news", "1");
        expect("news 1");
        listeners.getListenerContainer("news").stop();
        topics.convertAndSend("news", "2");
        topics.convertAndSend("news", "3");
        listeners.getListenerContainer("news").start();
        expect("news 2", "news 3");
    }

    // --- what is said by Spring Boot's properties alone

    /** Subscribes as the properties say. */
    @Component
    @ConditionalOnProperty(name = "scenario", havingValue = "properties")
    static class Reader {
        @JmsListener(destination = "prices", subscription = "readers")
        void price(Message price) throws JMSException {
            long at = price.getJMSTimestamp();
            EVENTS.add(
                    String.format(
                            "price %s priority %d mode %d lives %d ms after %d ms of %s",
                            price.getBody(String.class),
                            price.getJMSPriority(),
                            price.getJMSDeliveryMode(),
                            price.getJMSExpiration() - at,
                            price.getJMSDeliveryTime() - at,
                            price.getJMSDestination().getClass().getSimpleName()));
        }
    }

    private static void properties(JmsTemplate template) throws InterruptedException {
        String event = null;
        while (event == null) { // the first ones may come before the subscription
            template.convertAndSend("7.50");
            event = EVENTS.poll(2, TimeUnit.SECONDS);
        }
        System.out.println(event);
    }

    // --- a flood, amid which a node is killed

    private static final AtomicInteger FAILED = new AtomicInteger();
    private static final AtomicInteger MOVED = new AtomicInteger();

    /** Moves each message on; that it took it and that it sent it are one transaction. */
    @Component
    @ConditionalOnProperty(name = "scenario", havingValue = "flood")
    static class Mover {
        private final JmsTemplate template;

        Mover(JmsTemplate template) {
            this.template = template;
        }

        @JmsListener(destination = "orders", concurrency = "4-4")
        void move(String what) {
            template.convertAndSend("done", what);
            MOVED.incrementAndGet();
        }
    }

    /** Send a message until it is accepted; one that was, and is sent again, is no second one. */
    private static void send(JmsTemplate template, String what) {
        while (true) {
            try {
                template.convertAndSend(
                        "orders",
                        what,
                        one -> {
                            one.setStringProperty("_AMQ_DUPL_ID", what);
                            return one;
                        });
                return;
            } catch (JmsException error) {
                FAILED.incrementAndGet();
                System.out.println("failed to send: " + error.getMessage());
            }
        }
    }

    /** Return whether a queue is empty: a browser sees what consumers have, too. */
    private static boolean isEmpty(JmsTemplate template, String queue) {
        return template.browse(
                queue, (session, browser) -> !browser.getEnumeration().hasMoreElements());
    }

    private static void flood(
            JmsTemplate template, JmsListenerEndpointRegistry listeners, int messages)
            throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicInteger sent = new AtomicInteger();
        List<Thread> senders = new ArrayList<>();
        for (int sender = 0; sender < SENDERS; sender++) {
            Thread thread =
                    new Thread(
                            () -> {
                                for (int i = next.getAndIncrement();
                                        i < messages;
                                        i = next.getAndIncrement()) {
                                    send(template, "order " + i);
                                    int so_far = sent.incrementAndGet();
                                    if (so_far % (messages / 20) == 0) {
                                        System.out.println("sent " + so_far);
                                    }
                                }
                            });
            thread.start();
            senders.add(thread);
        }
        for (Thread thread : senders) {
            thread.join();
        }
        while (MOVED.get() < messages || !isEmpty(template, "orders")) {
            TimeUnit.MILLISECONDS.sleep(200);
        }
        listeners.stop();
        List<String> moved =
                template.execute(
                        session -> {
                            List<String> found = new ArrayList<>();
                            MessageConsumer consumer = session.createConsumer(session.createQueue("done"));
                            for (Message one = consumer.receive(QUIET_MS);
                                    one != null;
                                    one = consumer.receive(QUIET_MS)) {
                                found.add(one.getBody(String.class));
                            }
                            return found;
                        },
                        true);
        int distinct = new HashSet<>(moved).size();
        System.out.println("moved " + moved.size() + ", distinct " + distinct);
    }
}
