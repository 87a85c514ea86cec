/* The connection to the session: one request at a time. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "loader.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = -1;
static pid_t owner;
static bool lost;

void say(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "egpu: %s\n", text);
}

bool loader_active(void)
{
    return getenv("EGPU_LOADER_SOCKET") != NULL;
}

static bool send_all(const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t sent = send(connection, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

static bool receive_all(void *bytes, size_t size)
{
    char *at = bytes;
    while (size > 0) {
        ssize_t got = recv(connection, at, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

static int exchange(struct egpu_loader_request *request, const void *const *parts,
                    const size_t *sizes, int count, struct answer *answer)
{
    struct egpu_loader_reply reply;
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += sizes[i];
    if (total > EGPU_LOADER_SIZE_LIMIT)
        return -E2BIG;
    request->magic = EGPU_LOADER_MAGIC;
    request->version = EGPU_LOADER_VERSION;
    request->size = (uint32_t)total;
    bool good = send_all(request, sizeof *request);
    for (int i = 0; good && i < count; i++)
        good = send_all(parts[i], sizes[i]);
    if (!good || !receive_all(&reply, sizeof reply) || reply.magic != EGPU_LOADER_MAGIC ||
        reply.version != EGPU_LOADER_VERSION || reply.op != request->op ||
        reply.size > EGPU_LOADER_SIZE_LIMIT)
        return -EPIPE;
    answer->value = reply.value;
    answer->size = reply.size;
    if (reply.size > 0) {
        answer->bytes = malloc(reply.size);
        if (answer->bytes == NULL || !receive_all(answer->bytes, reply.size))
            return -EPIPE;
    }
    return -(int)reply.error;
}

int move_up(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    close(fd);
    errno = error;
    return high;
}

static bool connect_once(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("EGPU_LOADER_SOCKET");
    if (path == NULL || strlen(path) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, path);
    connection = move_up(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connection < 0 ||
        connect(connection, (const struct sockaddr *)&address, sizeof address) != 0)
        return false;
    struct egpu_loader_request hello = {.op = EGPU_OP_HELLO, .a = (uint64_t)getpid()};
    struct answer answer = {0};
    int error = exchange(&hello, NULL, NULL, 0, &answer);
    free(answer.bytes);
    return error == 0;
}

int ask(const struct egpu_loader_request *request, const void *const *parts, const size_t *sizes,
        int count, struct answer *answer)
{
    struct egpu_loader_request own = *request;
    memset(answer, 0, sizeof *answer);
    pthread_mutex_lock(&lock);
    if (owner != getpid()) { /* a forked child must not take part in its parent's conversation */
        owner = getpid();
        lost = !connect_once();
    }
    int error = lost ? -EPIPE : exchange(&own, parts, sizes, count, answer);
    if (error == -EPIPE && !lost)
        lost = true;
    pthread_mutex_unlock(&lock);
    if (error == -EPIPE) { /* libbpf knows nothing of pipes */
        free(answer->bytes);
        answer->bytes = NULL;
        answer->size = 0;
        return -EIO;
    }
    return error;
}
