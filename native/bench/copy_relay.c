/* The least a relay can do, to compare with: two threads that block, read and write.
   usage: copy_relay LISTEN_PORT WORKER_PORT */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK_BYTES = 128 << 10 };

struct direction {
  int from;
  int to;
};

static struct sockaddr_in loopback(const char* port) {
  struct sockaddr_in address = {0};
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

static void* copy(void* argument) {
  const struct direction* way = argument;
  static _Thread_local char block[BLOCK_BYTES];
  ssize_t count;
  while ((count = recv(way->from, block, sizeof block, 0)) > 0) {
    ssize_t sent = 0;
    while (sent < count) {
      const ssize_t more = send(way->to, block + sent, (size_t)(count - sent), 0);
      if (more < 0) goto end;
      sent += more;
    }
  }
end:
  shutdown(way->to, SHUT_WR);
  return NULL;
}

static void serve(int client, const struct sockaddr_in* worker_address) {
  const int on = 1;
  const int worker = socket(AF_INET, SOCK_STREAM, 0);
  struct direction up = {client, worker}, down = {worker, client};
  pthread_t thread;
  if (connect(worker, (const struct sockaddr*)worker_address, sizeof *worker_address) == 0) {
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(worker, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_create(&thread, NULL, copy, &down);
    copy(&up);
    pthread_join(thread, NULL);
  }
  close(worker);
  close(client);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int on = 1;
  const struct sockaddr_in own = loopback(argv[1]), worker = loopback(argv[2]);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  signal(SIGPIPE, SIG_IGN);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (const struct sockaddr*)&own, sizeof own) != 0) return 1;
  if (listen(listener, 16) != 0) return 1;
  for (;;) serve(accept(listener, NULL, NULL), &worker);
}
