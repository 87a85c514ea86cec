/* Objects by the inode of their memfd. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object **table;
static size_t count, room;
static dev_t device;

int object_create(struct object *object)
{
    struct stat status;
    struct object *kept = malloc(sizeof *kept);
    int fd = move_up(memfd_create("egpu", MFD_CLOEXEC));
    if (kept == NULL || fd < 0 || fstat(fd, &status) != 0) {
        int error = kept == NULL ? ENOMEM : errno;
        free(kept);
        if (fd >= 0)
            close(fd);
        errno = error;
        return -1;
    }
    object->inode = (uint64_t)status.st_ino;
    *kept = *object;
    pthread_mutex_lock(&lock);
    device = status.st_dev;
    if (count == room) {
        size_t more = room == 0 ? 64 : 2 * room;
        struct object **larger = realloc(table, more * sizeof(struct object *));
        if (larger == NULL) {
            pthread_mutex_unlock(&lock);
            free(kept);
            close(fd);
            errno = ENOMEM;
            return -1;
        }
        table = larger;
        room = more;
    }
    table[count++] = kept;
    pthread_mutex_unlock(&lock);
    return fd;
}

struct object *object_of(int fd)
{
    struct stat status;
    struct object *found = NULL;
    int error = errno;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        pthread_mutex_lock(&lock);
        /* An inode may be given out again once all descriptors of it are closed: the last is it. */
        for (size_t i = count; found == NULL && i > 0; i--)
            if (table[i - 1]->inode == (uint64_t)status.st_ino && status.st_dev == device)
                found = table[i - 1];
        pthread_mutex_unlock(&lock);
    }
    errno = error;
    return found;
}
