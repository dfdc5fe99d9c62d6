// A shop in Java: its orders and their messages in one transaction, by plain JDBC and by Spring.
//
//   SHOP_PASSWORD=... java -cp 'build/*' Shop.java URL USER MESSAGE_ID
//
// It prints what came of what is refused.

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.support.TransactionTemplate;

class Shop {
    public static void main(String[] arguments) throws SQLException {
        String url = arguments[0], user = arguments[1], messageId = arguments[2];
        String password = System.getenv("SHOP_PASSWORD");
        String call = url.startsWith("jdbc:postgresql:") ? "SELECT" : "CALL";
        try (Connection connection = DriverManager.getConnection(url, user, password)) {
            connection.setAutoCommit(false);
            byJdbc(connection, call);
        }
        var source = new DriverManagerDataSource(url, user, password);
        bySpring(source, call);
        consume(source, call, messageId);
    }

    /** Commits one order, and rolls another back. */
    static void byJdbc(Connection connection, String call) throws SQLException {
        order(connection, call, 1, "jdbc");
        connection.commit();
        order(connection, call, 2, "jdbc, rolled back");
        connection.rollback();
        try {
            order(connection, call, 3, null);
        } catch (SQLException error) {
            System.out.println("no body: " + error.getSQLState());
            connection.rollback();
        }
    }

    static void order(Connection connection, String call, int id, String body) throws SQLException {
        try (PreparedStatement insert =
                connection.prepareStatement("INSERT INTO shop_orders (id) VALUES (?)")) {
            insert.setInt(1, id);
            insert.executeUpdate();
        }
        try (PreparedStatement send =
                connection.prepareStatement(call + " orthia_send(?, ?, ?)")) {
            send.setString(1, "/queue/orders");
            send.setBytes(2, body == null ? null : body.getBytes(StandardCharsets.UTF_8));
            send.setString(3, "{\"priority\": 7}");
            send.execute();
        }
    }

    /** Commits one order, whose savepoint it rolls back; an exception rolls another back. */
    static void bySpring(DriverManagerDataSource source, String call) {
        var jdbc = new JdbcTemplate(source);
        var manager = new JdbcTransactionManager(source);
        var transaction = new TransactionTemplate(manager);
        var nested = new TransactionTemplate(manager);
        nested.setPropagationBehavior(TransactionDefinition.PROPAGATION_NESTED);
        transaction.executeWithoutResult(status -> {
            jdbc.update("INSERT INTO shop_orders (id) VALUES (?)", 11);
            send(jdbc, call, "spring");
            nested.executeWithoutResult(inner -> {
                send(jdbc, call, "spring, nested, rolled back");
                inner.setRollbackOnly();
            });
        });
        try {
            transaction.executeWithoutResult(status -> {
                jdbc.update("INSERT INTO shop_orders (id) VALUES (?)", 12);
                send(jdbc, call, "spring, rolled back");
                throw new IllegalStateException("out of stock");
            });
        } catch (IllegalStateException error) {
            System.out.println("rolled back: " + error.getMessage());
        }
    }

    static void send(JdbcTemplate jdbc, String call, String body) {
        jdbc.query(call + " orthia_send(?, ?, ?)", rows -> {}, "/queue/orders", body, null);
    }

    /** Processes a message; a second time does nothing. */
    static void consume(DriverManagerDataSource source, String call, String messageId) {
        var jdbc = new JdbcTemplate(source);
        var transaction = new TransactionTemplate(new JdbcTransactionManager(source));
        for (int n = 0; n < 2; n++) {
            try {
                transaction.executeWithoutResult(status -> {
                    jdbc.query(call + " orthia_ack(?)", rows -> {}, messageId);
                    jdbc.update("UPDATE shop_orders SET done = done + 1 WHERE id = ?", 11);
                });
            } catch (DuplicateKeyException error) {
                String why = error.getMostSpecificCause().getMessage();
                System.out.println("second time: " + why.lines().findFirst().orElseThrow());
            }
        }
    }
}
