/* The socket to the session.  Only the agent's thread receives, except during the hello. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"

enum { HELLO_WAIT_MS = 5000, SEND_WAIT_S = 5, HIGH_DESCRIPTOR = 700, MAX_TEXTS = 4 };

static _Atomic int descriptor = -1;
static dev_t socket_device;
static ino_t socket_inode;

/* A workload may close every descriptor it does not know and open files in their place. */
static bool still_ours(int fd)
{
    struct stat now;
    return fstat(fd, &now) == 0 && now.st_dev == socket_device && now.st_ino == socket_inode;
}

int egpu_wire_descriptor(void)
{
    int fd = atomic_load(&descriptor);
    return fd >= 0 && still_ours(fd) ? fd : -1;
}

/* Out of the way of programs that count on low numbers. */
static int move_up(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

int egpu_wire_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct stat status;
    struct timeval wait = {.tv_sec = SEND_WAIT_S};
    if (strlen(path) >= sizeof address.sun_path) {
        egpu_say("socket path is too long: %s; running unprobed", path);
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        egpu_say("no socket: %s; running unprobed", strerror(errno));
        return -1;
    }
    fd = move_up(fd);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        egpu_say("no session at %s: %s; running unprobed", path, strerror(errno));
    } else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
               (peer.uid != geteuid() && peer.uid != 0)) {
        egpu_say("the session at %s belongs to another user; running unprobed", path);
    } else if (fstat(fd, &status) == 0) {
        socket_device = status.st_dev;
        socket_inode = status.st_ino;
        atomic_store(&descriptor, fd);
        return 0;
    }
    close(fd);
    return -1;
}

void egpu_wire_close(void)
{
    int fd = atomic_exchange(&descriptor, -1);
    if (fd >= 0 && still_ours(fd))
        shutdown(fd, SHUT_RDWR); /* the number stays taken: another thread may be using it */
}

static int send_packet(uint32_t kind, uint32_t request, const void *fixed, size_t fixed_size,
                       const char *const *texts, const size_t *sizes, size_t count, int file,
                       int flags)
{
    struct egpu_header header = {EGPU_WIRE_MAGIC, EGPU_WIRE_VERSION, (uint16_t)kind, 0, request};
    struct iovec parts[2 + MAX_TEXTS] = {{&header, sizeof header}, {(void *)fixed, fixed_size}};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2 + count};
    size_t total = sizeof header + fixed_size;
    int fd = egpu_wire_descriptor();
    for (size_t i = 0; i < count; i++) {
        parts[2 + i] = (struct iovec){(void *)texts[i], sizes[i]};
        total += sizes[i];
    }
    if (fd < 0 || total > EGPU_PACKET_LIMIT)
        return -1;
    header.size = (uint32_t)total;
    if (file >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &file, sizeof file);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | flags);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)total ? 0 : -1;
}

int egpu_wire_send(uint32_t kind, uint32_t request, const void *fixed, size_t fixed_size,
                   const char *const *texts, const size_t *sizes, size_t count, int file)
{
    return send_packet(kind, request, fixed, fixed_size, texts, sizes, count, file, 0);
}

/* What the session can do without: it is lost where sending it would take time, as to a session that
 * is stopped. */
void egpu_wire_try(uint32_t kind, const void *fixed, size_t fixed_size, const char *const *texts,
                   const size_t *sizes, size_t count)
{
    send_packet(kind, 0, fixed, fixed_size, texts, sizes, count, -1, MSG_DONTWAIT);
}

static void take_files(struct msghdr *message, int *files)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int file;
            memcpy(&file, CMSG_DATA(c) + i * sizeof file, sizeof file);
            if (i < EGPU_FILES_LIMIT && files[i] < 0)
                files[i] = file;
            else
                close(file);
        }
    }
}

/* 1: a packet; 0: none in time; -1: the session is gone or speaks nonsense.  Ours are the files. */
int egpu_wire_receive(unsigned char *packet, size_t *size, int *files, int wait_ms)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int) * EGPU_FILES_LIMIT)];
    } control;
    struct iovec part = {packet, EGPU_PACKET_LIMIT};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct egpu_header header;
    int fd = egpu_wire_descriptor();
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        return -1;
    int count = poll(&ready, 1, wait_ms);
    if (count <= 0)
        return count == 0 || errno == EINTR ? 0 : -1;
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got < (ssize_t)sizeof header)
        return -1;
    for (int i = 0; i < (int)EGPU_FILES_LIMIT; i++)
        files[i] = -1;
    take_files(&message, files);
    memcpy(&header, packet, sizeof header);
    *size = (size_t)got;
    if (header.magic == EGPU_WIRE_MAGIC && header.size == (uint32_t)got &&
        (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
        return 1;
    for (int i = 0; i < (int)EGPU_FILES_LIMIT; i++)
        if (files[i] >= 0)
            close(files[i]);
    return -1;
}

/* Points texts into the packet; false unless they fill it exactly. */
bool egpu_wire_texts(const unsigned char *packet, size_t fixed_size, const uint32_t *sizes,
                     size_t count, const char **texts)
{
    struct egpu_header header;
    memcpy(&header, packet, sizeof header);
    uint64_t at = sizeof header + fixed_size;
    for (size_t i = 0; i < count; i++) {
        texts[i] = (const char *)packet + at;
        at += sizes[i];
        if (at > header.size)
            return false;
    }
    return at == header.size;
}

/* Maps the stats memory of a WELCOME. */
static int take_welcome(const unsigned char *packet, size_t size, int file)
{
    struct egpu_welcome welcome;
    struct stat status;
    if (size != sizeof(struct egpu_header) + sizeof welcome || file < 0)
        return -1;
    memcpy(&welcome, packet + sizeof(struct egpu_header), sizeof welcome);
    if (welcome.layout != EGPU_LAYOUT_VERSION || fstat(file, &status) != 0 ||
        (uint64_t)status.st_size < welcome.stats_size ||
        welcome.stats_size < EGPU_STATS_HEADER_SIZE + sizeof(struct egpu_stats_slot))
        return -1;
    void *memory =
        mmap(NULL, welcome.stats_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return -1;
    struct egpu_stats_header *stats = memory;
    uint64_t room = (welcome.stats_size - EGPU_STATS_HEADER_SIZE) / sizeof(struct egpu_stats_slot);
    if (stats->magic != EGPU_STATS_MAGIC || stats->slots == 0 || stats->slots > room) {
        munmap(memory, welcome.stats_size);
        return -1;
    }
    egpu.stats = stats;
    egpu.slots = (struct egpu_stats_slot *)((char *)memory + EGPU_STATS_HEADER_SIZE);
    uint64_t counted = EGPU_STATS_HEADER_SIZE + (uint64_t)stats->slots * sizeof *egpu.slots;
    if (welcome.stats_size - counted >= EGPU_LAUNCHES_KEPT * sizeof *egpu.launches)
        egpu.launches = (uint64_t *)((char *)memory + counted);
    egpu.snapshot_ms = welcome.snapshot_ms;
    egpu.exit_wait_ms = welcome.exit_wait_ms;
    egpu.features = welcome.features;
    egpu.stack_base = welcome.stack_base;
    egpu.sample = welcome.sample;
    atomic_store(&egpu.ahead, welcome.ahead != 0);
    egpu_stacks_begin();
    atomic_store(&egpu.epoch, welcome.epoch);
    atomic_store(&egpu.twin_wait_ms, welcome.twin_wait_ms);
    return 0;
}

static int read_hello_answer(const unsigned char *packet, size_t size, const int *files)
{
    struct egpu_header header;
    struct egpu_bye bye;
    const char *text;
    memcpy(&header, packet, sizeof header);
    if (header.version != EGPU_WIRE_VERSION) {
        egpu_say("the session speaks protocol %u, this agent %u; running unprobed",
                 header.version, EGPU_WIRE_VERSION);
        return -1;
    }
    if (header.kind == EGPU_WELCOME && take_welcome(packet, size, files[0]) == 0)
        return 0;
    if (header.kind == EGPU_BYE && size >= sizeof header + sizeof bye) {
        memcpy(&bye, packet + sizeof header, sizeof bye);
        if (egpu_wire_texts(packet, sizeof bye, &bye.reason_size, 1, &text)) {
            egpu_say("%.*s; running unprobed", (int)bye.reason_size, text);
            return -1;
        }
    }
    egpu_say("the session's answer makes no sense; running unprobed");
    return -1;
}

int egpu_wire_hello(void)
{
    static unsigned char packet[EGPU_PACKET_LIMIT];
    struct egpu_hello hello = {(uint32_t)egpu.pid, EGPU_LAYOUT_VERSION};
    int files[EGPU_FILES_LIMIT];
    size_t size;
    int got = -1;
    uint64_t deadline = egpu_now() + HELLO_WAIT_MS * 1000000ull;
    if (egpu_wire_send(EGPU_HELLO, 0, &hello, sizeof hello, NULL, NULL, 0, -1) == 0)
        do
            got = egpu_wire_receive(packet, &size, files, HELLO_WAIT_MS);
        while (got == 0 && egpu_now() < deadline);
    if (got != 1) {
        egpu_say("the session does not answer; running unprobed");
        egpu_wire_close();
        return -1;
    }
    int result = read_hello_answer(packet, size, files);
    for (int i = 0; i < (int)EGPU_FILES_LIMIT; i++)
        if (files[i] >= 0)
            close(files[i]);
    if (result != 0)
        egpu_wire_close();
    return result;
}
