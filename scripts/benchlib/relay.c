/* Forwards TCP connections and holds back what clients send: a server that is far away. For protocols
 * in which a request is one message, every answer begins DELAY_MS later than it would.
 *
 *   relay PORT SERVER_PORT DELAY_MS     on all addresses, to 127.0.0.1
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static long delay_ms;
static int server_port;

struct pair {
    int from, to;
    long delay_ms;
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void hold(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

static void *forward(void *argument) {
    struct pair pair = *(struct pair *)argument;
    free(argument);
    char *buffer = malloc(256 << 10);
    ssize_t got;
    while (buffer != NULL && (got = read(pair.from, buffer, 256 << 10)) > 0) {
        if (pair.delay_ms > 0) hold(pair.delay_ms);
        for (ssize_t sent = 0, more; sent < got; sent += more) {
            if ((more = write(pair.to, buffer + sent, (size_t)(got - sent))) <= 0) goto end;
        }
    }
end:
    shutdown(pair.to, SHUT_WR);
    shutdown(pair.from, SHUT_RD);
    free(buffer);
    return NULL;
}

static void start(pthread_t *thread, int from, int to, long ms) {
    struct pair *pair = malloc(sizeof *pair);
    if (pair == NULL) die("malloc");
    *pair = (struct pair){from, to, ms};
    if (pthread_create(thread, NULL, forward, pair) != 0) die("pthread_create");
}

static void *serve(void *argument) {
    int client = *(int *)argument, server = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    free(argument);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(server, (struct sockaddr *)&address, sizeof address) == 0) {
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pthread_t there, back;
        start(&there, client, server, delay_ms);
        start(&back, server, client, 0);
        pthread_join(there, NULL);
        pthread_join(back, NULL);
    }
    close(server);
    close(client);
    return NULL;
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "relay PORT SERVER_PORT DELAY_MS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    server_port = atoi(words[2]);
    delay_ms = atol(words[3]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    if (listen(listener, 512) != 0) die("listen");
    for (;;) {
        int *client = malloc(sizeof *client);
        if (client == NULL || (*client = accept(listener, NULL, NULL)) < 0) die("accept");
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, client) != 0) die("pthread_create");
        pthread_detach(thread);
    }
}
