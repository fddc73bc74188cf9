/* Counts what a process receives from sockets. Preloaded before libc; read through the two
 * exported functions. Only receives count: poll() and send() cost no copy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

static atomic_ulong calls;
static atomic_ulong bytes;

unsigned long headrace_receive_calls(void) { return atomic_load(&calls); }
unsigned long headrace_received_bytes(void) { return atomic_load(&bytes); }

static ssize_t count(ssize_t got, int flags) {
  atomic_fetch_add(&calls, 1);
  if (got > 0 && !(flags & MSG_PEEK)) atomic_fetch_add(&bytes, (unsigned long)got);
  return got;
}

static int is_socket(int fd) {
  int type;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/* Threads may meet here for the first time together; all of them find the same address. */
#define REAL(name)                                        \
  static _Atomic(__typeof__(&name)) found;                \
  __typeof__(&name) real = atomic_load(&found);           \
  if (!real) {                                            \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);    \
    atomic_store(&found, real);                           \
  }

ssize_t recv(int fd, void *buffer, size_t size, int flags) {
  REAL(recv);
  return count(real(fd, buffer, size, flags), flags);
}

ssize_t recvfrom(int fd, void *buffer, size_t size, int flags, struct sockaddr *from,
                 socklen_t *length) {
  REAL(recvfrom);
  return count(real(fd, buffer, size, flags, from, length), flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  REAL(recvmsg);
  return count(real(fd, message, flags), flags);
}

ssize_t read(int fd, void *buffer, size_t size) {
  REAL(read);
  ssize_t got = real(fd, buffer, size);
  return is_socket(fd) ? count(got, 0) : got;
}

ssize_t readv(int fd, const struct iovec *parts, int length) {
  REAL(readv);
  ssize_t got = real(fd, parts, length);
  return is_socket(fd) ? count(got, 0) : got;
}
