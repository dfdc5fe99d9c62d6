"""Applications of JMS, by qpid-jms: suites of others, and Spring Boot.

``make test-amqp`` brings what they need from Maven's repository, and runs all of them.
"""
