"""Orders, RabbitMQ, payments: two services, and every order is paid once."""
