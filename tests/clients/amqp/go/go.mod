module orthia/tests/clients/amqp

go 1.19

require github.com/Azure/go-amqp v1.6.0
