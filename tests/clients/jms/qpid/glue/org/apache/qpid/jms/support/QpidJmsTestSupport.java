package org.apache.qpid.jms.support;

/** Has the name of the property that numbers the messages of tests. */
public class QpidJmsTestSupport {
    public static final String MESSAGE_NUMBER = "MessageNumber";
}
