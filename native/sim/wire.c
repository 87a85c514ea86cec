/* Frames to the server: a header of 24 bytes, then `size` bytes of payload; little endian.
 *
 *   u32 magic  u16 version  u16 kind  i32 status  u32 reserved  u64 size
 *
 * A reply has the request's kind, a CUresult in `status` and, on failure, one line of text as its
 * payload.  File descriptors travel with the header.  src/egpu/sim/wire.py is the other end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api.h"
#include "driver.h"

enum { WIRE_VERSION = 1 };
#define WIRE_MAGIC 0x4d495347u
#define WIRE_REPLY_LIMIT (64u << 20)

enum wire_kind {
  WIRE_HELLO = 1,
  WIRE_ADD_RANGE = 2,
  WIRE_REMOVE_RANGE = 3,
  WIRE_ADD_HOST = 4,
  WIRE_LOAD = 5,
  WIRE_BIND = 6,
  WIRE_UNLOAD = 7,
  WIRE_LAUNCH = 8,
};

struct wire_header {
  uint32_t magic;
  uint16_t version, kind;
  int32_t status;
  uint32_t reserved;
  uint64_t size;
};
_Static_assert(sizeof(struct wire_header) == 24, "wire header");

static int wire_socket = -1;

static bool send_all(const void *data, size_t size) {
  const char *at = data;
  while (size) {
    ssize_t sent = send(wire_socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= (size_t)sent;
  }
  return true;
}

static bool receive_all(void *data, size_t size) {
  char *at = data;
  while (size) {
    ssize_t got = recv(wire_socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= (size_t)got;
  }
  return true;
}

static bool send_header(const struct wire_header *header, int fd) {
  struct iovec part = {.iov_base = (void *)header, .iov_len = sizeof *header};
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  for (;;) {
    ssize_t sent = sendmsg(wire_socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    /* a short write leaves the descriptor sent and the rest to follow */
    return send_all((const char *)header + sent, sizeof *header - (size_t)sent);
  }
}

static CUresult wire_lost(void) {
  sim_say("the simulated device's server is gone; the device is lost");
  close(wire_socket);
  wire_socket = -1;
  sim_fault(CUDA_ERROR_UNKNOWN);
  return CUDA_ERROR_UNKNOWN;
}

/* One exchange.  `reply` (may be NULL) receives a malloc'ed payload of a successful reply. */
static CUresult call(enum wire_kind kind, const void *head, size_t head_size, const void *tail, size_t tail_size, int fd,
                     struct sim_module_info *reply) {
  if (wire_socket < 0) return CUDA_ERROR_UNKNOWN;
  struct wire_header header = {
      .magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = (uint16_t)kind, .size = head_size + tail_size};
  if (!send_header(&header, fd) || !send_all(head, head_size) || !send_all(tail, tail_size)) return wire_lost();
  struct wire_header answer;
  if (!receive_all(&answer, sizeof answer)) return wire_lost();
  if (answer.magic != WIRE_MAGIC || answer.version != WIRE_VERSION || answer.kind != kind || answer.size > WIRE_REPLY_LIMIT) {
    sim_say("the server speaks another protocol (this driver speaks version %d)", WIRE_VERSION);
    return wire_lost();
  }
  unsigned char *payload = malloc(answer.size + 1);
  if (!payload) return wire_lost();
  if (!receive_all(payload, answer.size)) {
    free(payload);
    return wire_lost();
  }
  payload[answer.size] = 0;
  if (answer.status != CUDA_SUCCESS) {
    if (answer.size) sim_say("%s", (char *)payload);
    free(payload);
    return answer.status;
  }
  if (reply) {
    reply->bytes = payload;
    reply->size = answer.size;
  } else {
    free(payload);
  }
  return CUDA_SUCCESS;
}

CUresult wire_open(int heap, uint64_t base, uint64_t size, unsigned *sm_count) {
  const char *path = getenv("EGPU_SIM_SOCKET");
  if (!path || !*path) {
    sim_say("no simulated device: EGPU_SIM_SOCKET is not set (start one with `python -m egpu.sim`)");
    return CUDA_ERROR_NO_DEVICE;
  }
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    sim_say("EGPU_SIM_SOCKET is longer than %zu bytes", sizeof address.sun_path - 1);
    return CUDA_ERROR_NO_DEVICE;
  }
  memcpy(address.sun_path, path, strlen(path) + 1);
  wire_socket = move_up(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (wire_socket < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  int connected;
  do connected = connect(wire_socket, (struct sockaddr *)&address, sizeof address);
  while (connected < 0 && errno == EINTR);
  if (connected < 0) {
    sim_say("no simulated device at %s: %s", path, strerror(errno));
    close(wire_socket);
    wire_socket = -1;
    return CUDA_ERROR_NO_DEVICE;
  }
  uint64_t hello[3] = {base, size, (uint64_t)getpid()};
  struct sim_module_info reply;
  TRY(call(WIRE_HELLO, hello, sizeof hello, NULL, 0, heap, &reply));
  uint32_t count = 0;
  if (reply.size >= sizeof count) memcpy(&count, reply.bytes, sizeof count);
  free(reply.bytes);
  *sm_count = count;
  return count ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

void wire_close(void) {
  if (wire_socket >= 0) close(wire_socket);
  wire_socket = -1;
}

CUresult wire_range(bool add, uint64_t base, uint64_t size) {
  uint64_t range[2] = {base, size};
  return call(add ? WIRE_ADD_RANGE : WIRE_REMOVE_RANGE, range, sizeof range, NULL, 0, -1, NULL);
}

CUresult wire_host(uint64_t base, uint64_t size, int fd, uint64_t offset) {
  uint64_t range[3] = {base, size, offset};
  return call(WIRE_ADD_HOST, range, sizeof range, NULL, 0, fd, NULL);
}

CUresult wire_load(const void *image, size_t size, struct sim_module_info *info) {
  return call(WIRE_LOAD, NULL, 0, image, size, -1, info);
}

CUresult wire_bind(uint32_t module, const struct sim_global *globals, uint32_t count) {
  size_t size = (1 + (size_t)count) * sizeof(uint64_t);
  uint64_t *words = malloc(size);
  if (!words) return CUDA_ERROR_OUT_OF_MEMORY;
  words[0] = module;
  for (uint32_t i = 0; i < count; i++) words[1 + i] = globals[i].address;
  CUresult result = call(WIRE_BIND, words, size, NULL, 0, -1, NULL);
  free(words);
  return result;
}

CUresult wire_unload(uint32_t module) {
  uint64_t words[1] = {module};
  return call(WIRE_UNLOAD, words, sizeof words, NULL, 0, -1, NULL);
}

CUresult wire_launch(const struct sim_launch *launch) {
  uint32_t head[11] = {launch->function->module->id,
                       launch->function->index,
                       launch->grid[0],
                       launch->grid[1],
                       launch->grid[2],
                       launch->block[0],
                       launch->block[1],
                       launch->block[2],
                       launch->dynamic_shared,
                       launch->cooperative,
                       launch->parameter_bytes};
  struct sim_module_info printed;
  TRY(call(WIRE_LAUNCH, head, sizeof head, launch->parameters, launch->parameter_bytes, -1, &printed));
  if (printed.size) { /* what the kernel's printf wrote */
    fwrite(printed.bytes, 1, printed.size, stdout);
    fflush(stdout);
  }
  free(printed.bytes);
  return CUDA_SUCCESS;
}
