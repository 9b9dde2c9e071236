/* Simulated libnvidia-ml.so.1. This file is the hand-written part: state, setters and their refusals, handles,
 * and MIG. library.py adds the getters of its table and a "not supported" stub for every other function of NVML,
 * and compiles the result.
 *
 * The library stores everything as text, one "key=value" per line. It looks up a key in this order:
 *
 *   faults      injected by a test; read at each nvmlInit; setters cannot override them
 *   volatile    settings lost by a reload of the driver: persistence, clocks, power, compute mode, MIG instances
 *   persistent  settings stored on the board: ECC mode, MIG mode
 *   scenario    properties of the board
 *
 * With the value "error:N", the getter returns N; with "hang", it sleeps forever; with "hang:S", it answers after S
 * seconds. A key found in none of them is not supported. "gpuN.all" applies to every call on GPU N, and
 * "gpuN.set.FIELD" to the setter of FIELD; "ignored" makes the setter report success without any effect.
 *
 * The code uses neither strtol nor scanf: with a newer C library on the build machine, they would bind to symbol
 * versions that older nodes lack.
 */
#define _GNU_SOURCE /* statx: stat would bind to a newer C library than older nodes have */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9,
    IN_USE = 19, NO_RESOURCES = 23, WRONG_VERSION = 25
};

#define GPUS 16
#define INSTANCES 16 /* GPU instances of a GPU; compute instances of a GPU instance */
#define TEXT 8192

/* ---- tables of key=value */

#define BUCKETS 8192

/* `first` and `next` chain rows whose keys have the same hash, newest first. They are rebuilt on the
 * first lookup after a change. */
struct row { char *key, *value; int next; };
struct table { struct row *rows; int count, room, indexed, first[BUCKETS]; struct statx read; };

static struct table scenario, faults, volatiles, persistent;

static u32 hash(const char *key) {
    u32 n = 5381;
    while (*key) n = 33 * n + (unsigned char)*key++;
    return n % BUCKETS;
}

static void clear(struct table *t) {
    t->indexed = 0;
    for (int i = 0; i < t->count; i++) { free(t->rows[i].key); free(t->rows[i].value); }
    t->count = 0;
}

static void drop(struct table *t, const char *key) {
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->rows[i].key, key)) {
            free(t->rows[i].key); free(t->rows[i].value);
            t->rows[i] = t->rows[--t->count];
            t->indexed = 0;
            return;
        }
}

static void add(struct table *t, const char *key, const char *value) {
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 64;
        t->rows = realloc(t->rows, t->room * sizeof *t->rows);
    }
    t->indexed = 0;
    t->rows[t->count].key = strdup(key);
    t->rows[t->count++].value = strdup(value);
}

static void put(struct table *t, const char *key, const char *value) {
    drop(t, key);
    add(t, key, value);
}

/* If a file has a key twice, the last line wins. */
static const char *find(struct table *t, const char *key) {
    if (!t->indexed) {
        for (int i = 0; i < BUCKETS; i++) t->first[i] = -1;
        for (int i = 0; i < t->count; i++) {
            u32 at = hash(t->rows[i].key);
            t->rows[i].next = t->first[at];
            t->first[at] = i;
        }
        t->indexed = 1;
    }
    for (int i = t->first[hash(key)]; i >= 0; i = t->rows[i].next)
        if (!strcmp(t->rows[i].key, key)) return t->rows[i].value;
    return NULL;
}

/* Returns 0 if the file exists. */
static int load(struct table *t, const char *path) {
    clear(t);
    FILE *in = fopen(path, "r");
    if (!in) return -1;
    static char line[TEXT];
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        char *equals = strchr(line, '=');
        if (line[0] == '#' || !equals) continue;
        *equals = 0;
        add(t, line, equals + 1);
    }
    fclose(in);
    return 0;
}

static int by_key(const void *a, const void *b) { return strcmp(((const struct row *)a)->key, ((const struct row *)b)->key); }

/* Like load(), but only if the file changed since the last call. Files are replaced, never written into.
 * The exception are the faults of a test, which are read only at nvmlInit. */
static int refresh(struct table *t, const char *path) {
    struct statx now;
    if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &now)) memset(&now, 0, sizeof now);
    else if (now.stx_ino == t->read.stx_ino && now.stx_size == t->read.stx_size && now.stx_mtime.tv_sec == t->read.stx_mtime.tv_sec &&
             now.stx_mtime.tv_nsec == t->read.stx_mtime.tv_nsec)
        return 0;
    int rc = load(t, path);
    t->read = now;
    return rc;
}

static int save(struct table *t, const char *path) {
    char temporary[600];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *out = fopen(temporary, "w");
    if (!out) return -1;
    qsort(t->rows, t->count, sizeof *t->rows, by_key);
    t->indexed = 0;
    t->read.stx_ino = 0;
    for (int i = 0; i < t->count; i++) fprintf(out, "%s=%s\n", t->rows[i].key, t->rows[i].value);
    return fclose(out) || rename(temporary, path) ? -1 : 0;
}

static u64 digits(const char **text) {
    u64 n = 0;
    while (**text >= '0' && **text <= '9') n = 10 * n + (u64)(*(*text)++ - '0');
    return n;
}

static u64 as_number(const char *text) { return digits(&text); }

/* ---- paths */

static char base[400], run[420];

static const char *place(const char *directory, const char *name) {
    static char path[4][520];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
    return path[turn];
}

/* ---- state on disk, shared by all processes */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised, lock_file = -1;

static void unlock_state(void) {
    if (lock_file >= 0) close(lock_file);
    lock_file = -1;
}

/* Makes the pending modes of one GPU current. ECC: "takes effect after the next reboot" (nvml.h,
 * nvmlDeviceSetEccMode). MIG on Ampere: "similar to ECC mode, MIG mode setting is persistent across
 * reboots" (MIG User Guide, deployment considerations); later GPUs lose it. */
static void settle(int gpu) {
    char key[64], current[64], kept[64], value[16];
    static const char *modes[] = {"ecc", "mig"};
    for (int m = 0; m < 2; m++) {
        snprintf(key, sizeof key, "gpu%d.%s_pending", gpu, modes[m]);
        snprintf(current, sizeof current, "gpu%d.%s_current", gpu, modes[m]);
        const char *pending = find(&persistent, key);
        if (!pending) continue;
        snprintf(kept, sizeof kept, "gpu%d.mig_persistent", gpu);
        const char *keeps = find(&scenario, kept);
        if (m == 1 && keeps && !strcmp(keeps, "0")) { drop(&persistent, key); drop(&persistent, current); continue; }
        snprintf(value, sizeof value, "%s", pending);
        put(&persistent, current, value);
    }
}

/* A boot, or a reload of the driver: discards volatile state and makes pending modes current. */
static void boot(void) {
    for (int gpu = 0; gpu < GPUS; gpu++) settle(gpu);
    clear(&volatiles);
    /* Distinguishes one load of the driver from the next. */
    struct timespec now;
    char moment[48];
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(moment, sizeof moment, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
    put(&volatiles, "booted", moment);
    /* A caller without write permission still gets the state as of after the boot. */
    mkdir(run, 0755);
    if (save(&volatiles, place(run, "state")) == 0) save(&persistent, place(base, "state"));
}

/* Reads the state; a writer holds the lock until unlock_state. */
static int lock_state(int writer) {
    /* If both files are unchanged, use the rows in memory: a driver answers in microseconds, so this
     * must too. */
    if (!writer && volatiles.read.stx_ino && !refresh(&volatiles, place(run, "state")) && (refresh(&persistent, place(base, "state")), 1))
        return OK;
    lock_file = open(place(base, "lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_file < 0 && !writer) lock_file = open(place(base, "lock"), O_RDONLY | O_CLOEXEC);
    if (lock_file < 0 && writer) return NO_PERMISSION;
    if (lock_file >= 0) flock(lock_file, LOCK_EX);
    refresh(&persistent, place(base, "state"));
    if (refresh(&volatiles, place(run, "state"))) boot();
    if (!writer) unlock_state();
    return OK;
}

static int save_state(void) {
    return save(&volatiles, place(run, "state")) || save(&persistent, place(base, "state")) ? NO_PERMISSION : OK;
}

/* ---- values */

static const char *raw(const char *key) {
    struct table *order[] = {&faults, &volatiles, &persistent, &scenario};
    for (int i = 0; i < 4; i++) {
        const char *found = find(order[i], key);
        /* A hang only delays: the answer comes from the layers below. */
        if (found && !(i == 0 && !strncmp(found, "hang", 4))) return found;
    }
    return NULL;
}

/* Returns OK and the text, or the code set by the scenario. Sleeps without holding a lock. */
static int text(const char *key, char *out, size_t size) {
    const char *fault = find(&faults, key);
    if (!fault) fault = find(&scenario, key);
    if (fault && !strncmp(fault, "hang", 4)) {
        u64 seconds = fault[4] == ':' ? as_number(fault + 5) : 0;
        int writing = lock_file >= 0;
        unlock_state();
        pthread_mutex_unlock(&mutex);
        do sleep(seconds ? (u32)seconds : 3600); while (!seconds);
        pthread_mutex_lock(&mutex);
        if (writing) lock_state(1);
    }
    const char *value = raw(key);
    if (!value || !strncmp(value, "hang", 4)) return NOT_SUPPORTED;
    if (!strncmp(value, "error:", 6)) return (int)as_number(value + 6);
    snprintf(out, size, "%s", value);
    return OK;
}

/* Like text(), for optional keys: an absent one yields OK and an empty text. */
static int asked(const char *key, char *out, size_t size) {
    *out = 0;
    if (!find(&faults, key) && !find(&scenario, key)) return OK;
    int rc = text(key, out, size);
    return rc == NOT_SUPPORTED && !raw(key) ? OK : rc; /* a hang without a value in the layers below */
}

static int field(int gpu, const char *name, char *out, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, name);
    return text(key, out, size);
}

static int number(int gpu, const char *name, u64 *out) {
    char value[TEXT];
    int rc = field(gpu, name, value, sizeof value);
    if (rc == OK) *out = value[0] == '-' ? (u64) - (long long)as_number(value + 1) : as_number(value);
    return rc;
}

static u64 number_or(int gpu, const char *name, u64 otherwise) {
    u64 found;
    return number(gpu, name, &found) == OK ? found : otherwise;
}

static void set(struct table *t, int gpu, const char *name, u64 value) {
    char key[128], number_text[32];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, name);
    snprintf(number_text, sizeof number_text, "%llu", value);
    put(t, key, number_text);
}

static void unset(struct table *t, int gpu, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, name);
    drop(t, key);
}

/* Returns whether the comma-separated `list` contains `wanted`. */
static int listed(const char *list, u64 wanted) {
    while (*list) {
        if (digits(&list) == wanted) return 1;
        while (*list && (*list < '0' || *list > '9')) list++;
    }
    return 0;
}

/* ---- handles */

enum kind { DEVICE = 1, GPU_INSTANCE, COMPUTE_INSTANCE, MIG_DEVICE };
struct handle { int kind, gpu, gi, ci; };

static struct handle devices[GPUS], instances[GPUS][INSTANCES], computes[GPUS][INSTANCES][INSTANCES], migs[GPUS][INSTANCES][INSTANCES];

static int within(const struct handle *h, const struct handle *pool, size_t size) {
    return (const char *)h >= (const char *)pool && (const char *)h < (const char *)pool + size &&
           ((const char *)h - (const char *)pool) % sizeof *h == 0 && h->kind;
}

static int genuine(const struct handle *h) {
    return within(h, devices, sizeof devices) || within(h, instances[0], sizeof instances) ||
           within(h, computes[0][0], sizeof computes) || within(h, migs[0][0], sizeof migs);
}

static struct handle *handle(struct handle *h, int kind, int gpu, int gi, int ci) {
    h->kind = kind, h->gpu = gpu, h->gi = gi, h->ci = ci;
    return h;
}

/* Every call on a handle calls begin first, and finish with its result. */
static int begin(struct handle *h, int kind, int writer) {
    pthread_mutex_lock(&mutex);
    if (!initialised) return UNINITIALIZED;
    if (!genuine(h)) return INVALID;
    if (h->kind != kind) return h->kind == MIG_DEVICE ? NOT_SUPPORTED : INVALID;
    int rc = lock_state(writer);
    if (rc) return rc;
    char key[32], ignored[64];
    snprintf(key, sizeof key, "gpu%d.all", h->gpu);
    return asked(key, ignored, sizeof ignored);
}

static int finish(int rc) {
    unlock_state();
    pthread_mutex_unlock(&mutex);
    return rc;
}

/* Setters: begin as a writer, and apply a fault on the setter first. Then done() writes, and logs the
 * call in `calls`. */
static int change(struct handle *h, int kind, const char *name, int *skip) {
    char key[96], value[64];
    int rc = begin(h, kind, 1);
    *skip = 0;
    if (rc) return rc;
    snprintf(key, sizeof key, "gpu%d.set.%s", h->gpu, name);
    rc = asked(key, value, sizeof value);
    *skip = !strcmp(value, "ignored");
    return rc;
}

static const char *one(u64 a) {
    static __thread char text[32];
    snprintf(text, sizeof text, "%llu", a);
    return text;
}

static const char *two(u32 a, u32 b) {
    static __thread char text[32];
    snprintf(text, sizeof text, "%u,%u", a, b);
    return text;
}

static int done(struct handle *h, const char *call, const char *argument, int rc, int write) {
    if (rc == OK && write) rc = save_state();
    FILE *out = initialised && genuine(h) ? fopen(place(run, "calls"), "a") : NULL;
    if (out) {
        fprintf(out, "gpu%d %s %s rc=%d pid=%d\n", h->gpu, call, argument, rc, (int)getpid());
        fclose(out);
    }
    return finish(rc);
}

/* ---- the library itself */

static int visible(int *list) {
    u64 count = 0;
    const char *told = raw("count");
    if (told) count = as_number(told);
    int found = 0;
    for (int gpu = 0; gpu < GPUS && (u64)gpu < count; gpu++)
        if (!number_or(gpu, "absent", 0)) list[found++] = gpu;
    return found;
}

static int start(void) {
    char value[64];
    pthread_mutex_lock(&mutex);
    const char *elsewhere = getenv("GOLDNODE_SIMULATOR");
    snprintf(base, sizeof base, "%s", elsewhere && *elsewhere ? elsewhere : "/opt/goldnode-simulator");
    snprintf(run, sizeof run, "%s", elsewhere && *elsewhere ? place(base, "run") : "/run/goldnode-simulator");
    int rc = load(&scenario, place(base, "scenario")) ? NOT_LOADED : OK;
    if (rc == OK) {
        load(&faults, place(base, "faults"));
        lock_state(0);
        rc = asked("init", value, sizeof value);
    }
    if (rc == OK) {
        for (int gpu = 0; gpu < GPUS; gpu++) handle(&devices[gpu], DEVICE, gpu, 0, 0);
        initialised++;
    }
    pthread_mutex_unlock(&mutex);
    return rc;
}

int nvmlInit(void) { return start(); }
int nvmlInit_v2(void) { return start(); }
int nvmlInitWithFlags(u32 flags) { (void)flags; return start(); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    int rc = initialised ? OK : UNINITIALIZED;
    if (initialised) initialised--;
    return finish(rc);
}

static int begin_system(void) {
    pthread_mutex_lock(&mutex);
    if (!initialised) return UNINITIALIZED;
    return lock_state(0);
}

static int give(const char *value, char *out, u32 size) {
    if (!out) return INVALID;
    if (strlen(value) + 1 > size) return SMALL;
    strcpy(out, value);
    return OK;
}

static int system_text(const char *key, char *out, u32 size) {
    char value[TEXT];
    int rc = begin_system();
    if (rc == OK) rc = text(key, value, sizeof value);
    if (rc == OK) rc = give(value, out, size);
    return finish(rc);
}

static int system_int(const char *key, int *out) {
    char value[TEXT];
    int rc = begin_system();
    if (rc == OK) rc = text(key, value, sizeof value);
    if (rc == OK) *out = (int)as_number(value);
    return finish(rc);
}

static int device_count(u32 *out) {
    int list[GPUS], rc = begin_system();
    if (rc == OK) *out = (u32)visible(list);
    return finish(rc);
}

int nvmlDeviceGetCount(u32 *out) { return device_count(out); }
int nvmlDeviceGetCount_v2(u32 *out) { return device_count(out); }

static int by_index(u32 index, struct handle **out) {
    int list[GPUS], rc = begin_system();
    if (rc == OK && index >= (u32)visible(list)) rc = INVALID;
    if (rc == OK) {
        char key[32], value[64];
        snprintf(key, sizeof key, "gpu%d.handle", list[index]);
        rc = asked(key, value, sizeof value);
    }
    if (rc == OK) *out = &devices[list[index]];
    return finish(rc);
}

int nvmlDeviceGetHandleByIndex(u32 index, struct handle **out) { return by_index(index, out); }
int nvmlDeviceGetHandleByIndex_v2(u32 index, struct handle **out) { return by_index(index, out); }

/* A domain may have four digits or eight. */
static int same_address(const char *a, const char *b) {
    size_t x = strlen(a), y = strlen(b);
    return !strcasecmp(x > 12 ? a + x - 12 : a, y > 12 ? b + y - 12 : b);
}

static int by_text(const char *name, const char *wanted, struct handle **out) {
    int list[GPUS], rc = begin_system();
    char value[TEXT];
    if (rc == OK) {
        rc = wanted ? NOT_FOUND : INVALID;
        for (int i = 0, count = visible(list); wanted && i < count && rc != OK; i++)
            if (field(list[i], name, value, sizeof value) == OK &&
                (strcmp(name, "pci.address") ? !strcmp(value, wanted) : same_address(value, wanted)))
                *out = &devices[list[i]], rc = OK;
    }
    return finish(rc);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **out) { return by_text("uuid", uuid, out); }
int nvmlDeviceGetHandleBySerial(const char *serial, struct handle **out) { return by_text("serial", serial, out); }
int nvmlDeviceGetHandleByPciBusId(const char *id, struct handle **out) { return by_text("pci.address", id, out); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct handle **out) { return by_text("pci.address", id, out); }

int nvmlDeviceGetIndex(struct handle *h, u32 *out) {
    int list[GPUS], rc = begin(h, DEVICE, 0);
    if (rc == OK) {
        rc = NOT_FOUND;
        for (int i = 0, count = visible(list); i < count; i++)
            if (list[i] == h->gpu) *out = (u32)i, rc = OK;
    }
    return finish(rc);
}

/* ---- helpers for the getters of the table (library.py) */

static int get_text(struct handle *h, const char *name, char *out, u32 size) {
    char value[TEXT];
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, name, value, sizeof value);
    if (rc == OK) rc = give(value, out, size);
    return finish(rc);
}

/* Fields joined by "|", each with one number. */
static int get_numbers(struct handle *h, const char *names, u64 *out) {
    int rc = begin(h, DEVICE, 0);
    while (rc == OK && *names) {
        char name[96];
        size_t length = strcspn(names, "|");
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        rc = number(h->gpu, name, out++);
        names += length + (names[length] == '|');
    }
    return finish(rc);
}

static int get_indexed(struct handle *h, const char *format, u32 a, u32 b, u32 c, u64 *out) {
    char name[96];
    snprintf(name, sizeof name, format, a, b, c);
    return get_numbers(h, name, out);
}

/* ---- identity */

struct pci { char legacy[16]; u32 domain, bus, device, device_id, subsystem; char id[32]; };
struct pci_ext { u32 version, domain, bus, device, device_id, subsystem, base_class, sub_class; char id[32]; };

static u32 hexadecimal(const char *text, int length) {
    u32 n = 0;
    for (int i = 0; i < length && text[i]; i++) {
        char c = text[i];
        n = 16 * n + (u32)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return n;
}

static int pci_info(struct handle *h, struct pci *out) {
    char address[64], device[16], subsystem[16];
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, "pci.address", address, sizeof address);
    if (rc == OK) rc = field(h->gpu, "pci.device_id", device, sizeof device);
    if (rc == OK) rc = field(h->gpu, "pci.subsystem_id", subsystem, sizeof subsystem);
    if (rc == OK) {
        memset(out, 0, sizeof *out);
        snprintf(out->legacy, sizeof out->legacy, "%.15s", address);
        snprintf(out->id, sizeof out->id, "0000%.27s", address);
        for (char *at = out->id; *at; at++) if (*at >= 'a' && *at <= 'f') *at -= 32;
        for (char *at = out->legacy; *at; at++) if (*at >= 'a' && *at <= 'f') *at -= 32;
        out->domain = hexadecimal(address, 4);
        out->bus = hexadecimal(address + 5, 2);
        out->device = hexadecimal(address + 8, 2);
        out->device_id = hexadecimal(device, 8);
        out->subsystem = hexadecimal(subsystem, 8);
    }
    return finish(rc);
}

int nvmlDeviceGetPciInfo(struct handle *h, struct pci *out) { return pci_info(h, out); }
int nvmlDeviceGetPciInfo_v2(struct handle *h, struct pci *out) { return pci_info(h, out); }
int nvmlDeviceGetPciInfo_v3(struct handle *h, struct pci *out) { return pci_info(h, out); }

int nvmlDeviceGetPciInfoExt(struct handle *h, struct pci_ext *out) {
    struct pci plain;
    if (out->version != (1u << 24 | sizeof *out)) return WRONG_VERSION;
    int rc = pci_info(h, &plain);
    if (rc != OK) return rc;
    out->domain = plain.domain, out->bus = plain.bus, out->device = plain.device;
    out->device_id = plain.device_id, out->subsystem = plain.subsystem, out->base_class = 3, out->sub_class = 2;
    memcpy(out->id, plain.id, sizeof out->id);
    return OK;
}

/* ---- clocks */

static int clock_now(struct handle *h, u32 type, u32 *out) {
    char name[32], fault[96];
    u64 clock = 0;
    int rc = begin(h, DEVICE, 0);
    snprintf(name, sizeof name, "clock.%u", type);
    snprintf(fault, sizeof fault, "gpu%d.clock.%u", h && rc == OK ? h->gpu : 0, type);
    if (rc == OK) rc = number(h->gpu, name, &clock);
    if (rc == OK && !find(&faults, fault)) {
        /* Locked clocks have no getter; only the running clock shows them. */
        u64 low = number_or(h->gpu, type == 2 ? "locked_memory.0" : "locked_graphics.0", 0);
        u64 high = number_or(h->gpu, type == 2 ? "locked_memory.1" : "locked_graphics.1", 0);
        if (low && clock < low) clock = low;
        if (high && clock > high) clock = high;
    }
    if (rc == OK) *out = (u32)clock;
    return finish(rc);
}

int nvmlDeviceGetClockInfo(struct handle *h, u32 type, u32 *out) { return clock_now(h, type, out); }

int nvmlDeviceGetClock(struct handle *h, u32 type, u32 id, u32 *out) {
    static const char *formats[] = {NULL, "application_clock.%u", "default_application_clock.%u", "max_customer_clock.%u"};
    u64 value = 0;
    if (id > 3) return INVALID;
    if (id == 0) return clock_now(h, type, out);
    int rc = get_indexed(h, formats[id], type, 0, 0, &value);
    if (rc == OK) *out = (u32)value;
    return rc;
}

static int give_list(struct handle *h, const char *name, u32 *count, u32 *out, u64 memory) {
    char list[TEXT], memories[TEXT];
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, name, list, sizeof list);
    if (rc == OK && memory) {
        rc = field(h->gpu, "supported_memory_clocks", memories, sizeof memories);
        if (rc == OK && !listed(memories, memory)) rc = NOT_FOUND;
    }
    if (rc == OK) {
        u32 room = *count, found = 0;
        for (const char *at = list; *at; at++) {
            u64 clock = digits(&at);
            if (out && found < room) out[found] = (u32)clock;
            found++;
            if (!*at) break;
        }
        *count = found;
        if (!out || found > room) rc = SMALL;
    }
    return finish(rc);
}

int nvmlDeviceGetSupportedMemoryClocks(struct handle *h, u32 *count, u32 *out) {
    return give_list(h, "supported_memory_clocks", count, out, 0);
}

int nvmlDeviceGetSupportedGraphicsClocks(struct handle *h, u32 memory, u32 *count, u32 *out) {
    return give_list(h, "supported_graphics_clocks", count, out, memory);
}

int nvmlDeviceSetApplicationsClocks(struct handle *h, u32 memory, u32 graphics) {
    char memories[TEXT], clocks[TEXT];
    int skip, rc = change(h, DEVICE, "application_clock", &skip);
    if (rc == OK) rc = field(h->gpu, "supported_memory_clocks", memories, sizeof memories);
    if (rc == OK) rc = field(h->gpu, "supported_graphics_clocks", clocks, sizeof clocks);
    if (rc == OK && (!listed(memories, memory) || !listed(clocks, graphics))) rc = INVALID;
    if (rc == OK && !skip) {
        set(&volatiles, h->gpu, "application_clock.0", graphics);
        set(&volatiles, h->gpu, "application_clock.1", graphics);
        set(&volatiles, h->gpu, "application_clock.2", memory);
    }
    return done(h, "nvmlDeviceSetApplicationsClocks", two(memory, graphics), rc, !skip);
}

int nvmlDeviceResetApplicationsClocks(struct handle *h) {
    int skip, rc = change(h, DEVICE, "application_clock", &skip);
    for (int type = 0; type < 3 && rc == OK && !skip; type++) {
        char name[32];
        snprintf(name, sizeof name, "application_clock.%d", type);
        unset(&volatiles, h->gpu, name);
    }
    return done(h, "nvmlDeviceResetApplicationsClocks", "-", rc, !skip);
}

/* The bounds must be in order, and the upper one at most the board's highest clock. */
static int lock_clocks(struct handle *h, const char *call, const char *name, u32 type, u32 low, u32 high) {
    char key[64], top[32];
    u64 most = 0;
    int skip, rc = change(h, DEVICE, name, &skip);
    snprintf(top, sizeof top, "max_clock.%u", type);
    if (rc == OK) rc = number(h->gpu, top, &most);
    if (rc == OK && (low > high || !high || high > most)) rc = INVALID;
    if (rc == OK && !skip) {
        snprintf(key, sizeof key, "%s.0", name), set(&volatiles, h->gpu, key, low);
        snprintf(key, sizeof key, "%s.1", name), set(&volatiles, h->gpu, key, high);
    }
    return done(h, call, two(low, high), rc, !skip);
}

static int free_clocks(struct handle *h, const char *call, const char *name) {
    char key[64];
    int skip, rc = change(h, DEVICE, name, &skip);
    if (rc == OK && !skip) {
        snprintf(key, sizeof key, "%s.0", name), unset(&volatiles, h->gpu, key);
        snprintf(key, sizeof key, "%s.1", name), unset(&volatiles, h->gpu, key);
    }
    return done(h, call, "-", rc, !skip);
}

int nvmlDeviceSetGpuLockedClocks(struct handle *h, u32 low, u32 high) {
    return lock_clocks(h, "nvmlDeviceSetGpuLockedClocks", "locked_graphics", 0, low, high);
}

int nvmlDeviceResetGpuLockedClocks(struct handle *h) { return free_clocks(h, "nvmlDeviceResetGpuLockedClocks", "locked_graphics"); }

int nvmlDeviceSetMemoryLockedClocks(struct handle *h, u32 low, u32 high) {
    return lock_clocks(h, "nvmlDeviceSetMemoryLockedClocks", "locked_memory", 2, low, high);
}

int nvmlDeviceResetMemoryLockedClocks(struct handle *h) { return free_clocks(h, "nvmlDeviceResetMemoryLockedClocks", "locked_memory"); }

/* ---- modes and power */

static int set_mode(struct handle *h, const char *call, const char *name, u32 mode, u32 most, struct table *into, const char *key) {
    u64 have;
    int skip, rc = change(h, DEVICE, name, &skip);
    if (rc == OK && mode > most) rc = INVALID;
    if (rc == OK) rc = number(h->gpu, key, &have); /* a mode that cannot be read is not supported */
    if (rc == OK && !skip) set(into, h->gpu, key, mode);
    return done(h, call, one(mode), rc, !skip);
}

int nvmlDeviceSetPersistenceMode(struct handle *h, u32 mode) {
    return set_mode(h, "nvmlDeviceSetPersistenceMode", "persistence_mode", mode, 1, &volatiles, "persistence_mode");
}

int nvmlDeviceSetEccMode(struct handle *h, u32 mode) {
    return set_mode(h, "nvmlDeviceSetEccMode", "ecc", mode, 1, &persistent, "ecc_pending");
}

int nvmlDeviceSetComputeMode(struct handle *h, u32 mode) {
    /* 1, exclusive per thread, no longer exists. With MIG on, the mode is the default one and cannot be
     * changed. */
    int skip, rc = change(h, DEVICE, "compute_mode", &skip);
    if (rc == OK && (mode > 3 || mode == 1)) rc = mode == 1 ? NOT_SUPPORTED : INVALID;
    if (rc == OK && number_or(h->gpu, "mig_current", 0)) rc = NOT_SUPPORTED;
    if (rc == OK && !skip) set(&volatiles, h->gpu, "compute_mode", mode);
    return done(h, "nvmlDeviceSetComputeMode", one(mode), rc, !skip);
}

static int set_power(struct handle *h, u64 limit) {
    u64 low = 0, high = 0;
    int skip, rc = change(h, DEVICE, "power_limit", &skip);
    if (rc == OK) rc = number(h->gpu, "power_min", &low);
    if (rc == OK) rc = number(h->gpu, "power_max", &high);
    if (rc == OK && (limit < low || limit > high)) rc = INVALID;
    if (rc == OK && !skip) set(&volatiles, h->gpu, "power_limit", limit);
    return done(h, "nvmlDeviceSetPowerManagementLimit", one(limit), rc, !skip);
}

int nvmlDeviceSetPowerManagementLimit(struct handle *h, u32 limit) { return set_power(h, limit); }

struct power { u32 version, scope, limit; };

int nvmlDeviceSetPowerManagementLimit_v2(struct handle *h, struct power *wanted) {
    if (wanted->version != (2u << 24 | sizeof *wanted)) return WRONG_VERSION;
    return wanted->scope ? NOT_SUPPORTED : set_power(h, wanted->limit);
}

int nvmlDeviceGetEnforcedPowerLimit(struct handle *h, u32 *out) {
    u64 value = 0;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK && number(h->gpu, "enforced_power_limit", &value) != OK) rc = number(h->gpu, "power_limit", &value);
    if (rc == OK) *out = (u32)value;
    return finish(rc);
}

/* ---- counters and structures other than a plain row of numbers */

struct sram { u32 version; u64 counts[11]; u32 exceeded; };

int nvmlDeviceGetSramEccErrorStatus(struct handle *h, struct sram *out) {
    if (out->version != (1u << 24 | sizeof *out)) return WRONG_VERSION;
    u64 flag = 0;
    int rc = get_numbers(h, "sram.threshold_exceeded", &flag);
    for (u32 i = 0; i < 11 && rc == OK; i++) rc = get_indexed(h, "sram.%u", i, 0, 0, &out->counts[i]);
    if (rc == OK) out->exceeded = (u32)flag;
    return rc;
}

/* While MIG instances exist, the driver does not report remapped rows. */
static int has_instances(int gpu);

int nvmlDeviceGetRemappedRows(struct handle *h, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
    u32 *out[] = {corrected, uncorrected, pending, failure};
    static const char *names[] = {"remapped.correctable", "remapped.uncorrectable", "remapped.pending", "remapped.failure"};
    int rc = begin(h, DEVICE, 0);
    if (rc == OK && has_instances(h->gpu)) rc = NOT_SUPPORTED;
    for (int i = 0; i < 4 && rc == OK; i++) {
        u64 value = 0;
        rc = number(h->gpu, names[i], &value);
        *out[i] = (u32)value;
    }
    return finish(rc);
}

int nvmlDeviceGetUtilizationRates(struct handle *h, u32 out[2]) {
    u64 values[2];
    int rc = begin(h, DEVICE, 0);
    if (rc == OK && number_or(h->gpu, "mig_current", 0)) rc = NOT_SUPPORTED;
    if (rc == OK) rc = number(h->gpu, "utilization.gpu", &values[0]);
    if (rc == OK) rc = number(h->gpu, "utilization.memory", &values[1]);
    if (rc == OK) out[0] = (u32)values[0], out[1] = (u32)values[1];
    return finish(rc);
}

struct temperature { u32 version, sensor; int degrees; };

int nvmlDeviceGetTemperatureV(struct handle *h, struct temperature *out) {
    if (out->version != (1u << 24 | sizeof *out)) return WRONG_VERSION;
    u64 value = 0;
    int rc = get_indexed(h, "temperature.%u", out->sensor, 0, 0, &value);
    if (rc == OK) out->degrees = (int)value;
    return rc;
}

/* Counter type 0 is volatile, 1 aggregate. On boards that remap rows, only the volatile one can be
 * cleared. */
int nvmlDeviceClearEccErrorCounts(struct handle *h, u32 counter) {
    u64 on = 0;
    int skip, rc = change(h, DEVICE, "ecc_errors", &skip);
    if (rc == OK) rc = number(h->gpu, "ecc_current", &on);
    if (rc == OK && counter > 1) rc = INVALID;
    if (rc == OK && counter) rc = NOT_SUPPORTED;
    if (rc == OK && !skip) set(&volatiles, h->gpu, "ecc_errors.0.0", 0), set(&volatiles, h->gpu, "ecc_errors.1.0", 0);
    return done(h, "nvmlDeviceClearEccErrorCounts", one(counter), rc, !skip);
}

struct violation { u64 reference, violation; };

int nvmlDeviceGetViolationStatus(struct handle *h, u32 policy, struct violation *out) {
    out->reference = 0;
    return get_indexed(h, "violation.%u", policy, 0, 0, &out->violation);
}

struct value { u32 id, scope; long long time, latency; u32 type, rc; u64 value; };

/* Fields with the same meaning as another getter, so that the two agree: performance policies, PCIe
 * replays, remapped rows, and state and errors of a link. A fault on field.N itself takes precedence. */
static void field_name(const struct handle *h, u32 id, u32 scope, char *name, size_t size) {
    static const char *rows[] = {"correctable", "uncorrectable", "pending", "failure"};
    char key[64];
    snprintf(name, size, "field.%u.%u", id, scope);
    snprintf(key, sizeof key, "gpu%d.%s", h->gpu, name);
    if (raw(key)) return;
    snprintf(name, size, "field.%u", id);
    snprintf(key, sizeof key, "gpu%d.%s", h->gpu, name);
    if (raw(key) || find(&faults, key)) return;
    /* power, thermal, sync boost, board limit, low utilisation, reliability, in the order of
     * nvmlPerfPolicyType_t */
    if (id >= 74 && id <= 79) snprintf(name, size, "violation.%u", id - 74);
    if (id == 94) snprintf(name, size, "pcie.replays");
    if (id >= 142 && id <= 145) snprintf(name, size, "remapped.%s", rows[id - 142]);
    if (id >= 161 && id <= 163) snprintf(name, size, "nvlink.%u.errors.%u", scope, id - 161);
    if (id == 165) snprintf(name, size, "nvlink.%u.state", scope);
}

int nvmlDeviceGetFieldValues(struct handle *h, int count, struct value *values) {
    int rc = begin(h, DEVICE, 0);
    for (int i = 0; i < count && rc == OK; i++) {
        char name[48];
        field_name(h, values[i].id, values[i].scope, name, sizeof name);
        values[i].value = 0, values[i].time = 0, values[i].latency = 0;
        values[i].rc = (u32)number(h->gpu, name, &values[i].value);
        values[i].type = values[i].value >> 32 ? 3 : 1; /* unsigned long long, unsigned int */
    }
    return finish(rc);
}

/* inforom.valid: the checksums are right if it is absent or 1, and wrong if it is error:14. */
int nvmlDeviceValidateInforom(struct handle *h) {
    char ignored[64];
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, "inforom.valid", ignored, sizeof ignored);
    return finish(rc);
}

/* retired_pages.0 (several single-bit errors) and .1 (a double-bit error): number of pages, at
 * meaningless addresses. */
int nvmlDeviceGetRetiredPages(struct handle *h, u32 cause, u32 *count, u64 *addresses) {
    u64 value = 0;
    int rc = get_indexed(h, "retired_pages.%u", cause, 0, 0, &value);
    if (rc == OK) {
        u32 room = *count;
        *count = (u32)value;
        if (value && (!addresses || room < value)) return SMALL;
        for (u32 i = 0; i < value; i++) addresses[i] = 0x1000 * (i + 1);
    }
    return rc;
}

struct process { u32 pid; u64 memory; u32 gi, ci; };

/* `name` lists processes as PID:BYTES,PID:BYTES. */
static int processes(struct handle *h, const char *name, u32 *count, struct process *out) {
    char list[TEXT] = "";
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) {
        rc = field(h->gpu, name, list, sizeof list);
        if (rc == NOT_SUPPORTED) rc = OK;
    }
    if (rc == OK) {
        u32 room = *count, found = 0;
        for (const char *at = list; *at; found++) {
            u32 pid = (u32)digits(&at);
            u64 memory = *at == ':' ? (at++, digits(&at)) : 0;
            if (out && found < room) out[found].pid = pid, out[found].memory = memory, out[found].gi = out[found].ci = ~0u;
            if (*at) at++;
        }
        *count = found;
        if (found && (!out || found > room)) rc = SMALL;
    }
    return finish(rc);
}

int nvmlDeviceGetComputeRunningProcesses(struct handle *h, u32 *n, struct process *p) { return processes(h, "processes", n, p); }
int nvmlDeviceGetComputeRunningProcesses_v2(struct handle *h, u32 *n, struct process *p) { return processes(h, "processes", n, p); }
int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *h, u32 *n, struct process *p) { return processes(h, "processes", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses(struct handle *h, u32 *n, struct process *p) { return processes(h, "graphics_processes", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(struct handle *h, u32 *n, struct process *p) { return processes(h, "graphics_processes", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *h, u32 *n, struct process *p) { return processes(h, "graphics_processes", n, p); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct handle *h, u32 *n, struct process *p) { return processes(h, "mps_processes", n, p); }

static int fabric(struct handle *h, u64 *out) {
    return get_numbers(h, "fabric.status|fabric.clique|fabric.state|fabric.health|fabric.summary", out);
}

static u64 number_or_unlocked(struct handle *h, const char *name, u64 otherwise) {
    u64 value;
    return get_numbers(h, name, &value) == OK ? value : otherwise;
}

struct fabric1 { unsigned char cluster[16]; u32 status, clique, state; };
struct fabric2 { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; };
struct fabric3 { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; unsigned char summary; };

int nvmlDeviceGetGpuFabricInfo(struct handle *h, struct fabric1 *out) {
    u64 v[5];
    int rc = fabric(h, v);
    if (rc != OK) return rc;
    memset(out, 0, sizeof *out);
    out->status = (u32)v[0], out->clique = (u32)v[1], out->state = (u32)v[2];
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(struct handle *h, struct fabric3 *out) {
    u64 v[5];
    u32 version = out->version;
    if (version != (2u << 24 | sizeof(struct fabric2)) && version != (3u << 24 | sizeof(struct fabric3))) return WRONG_VERSION;
    if (version >> 24 == 3 && number_or_unlocked(h, "fabric.newest", 3) < 3) return WRONG_VERSION; /* an older driver */
    int rc = fabric(h, v);
    if (rc != OK) return rc;
    memset(out->cluster, 0, sizeof out->cluster);
    out->status = (u32)v[0], out->clique = (u32)v[1], out->state = (u32)v[2], out->health = (u32)v[3];
    if (version >> 24 == 3) out->summary = (unsigned char)v[4];
    return OK;
}

/* ---- MIG: the mode */

static int has_instances(int gpu) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "gpu%d.gi.", gpu);
    for (int i = 0; i < volatiles.count; i++)
        if (!strncmp(volatiles.rows[i].key, prefix, strlen(prefix))) return 1;
    return 0;
}

/* `activation` returns whether the mode is active now; a busy GPU activates it at its next reset. */
int nvmlDeviceSetMigMode(struct handle *h, u32 mode, u32 *activation) {
    u64 have = 0;
    char busy[TEXT];
    int skip, rc = change(h, DEVICE, "mig", &skip);
    if (rc == OK && mode > 1) rc = INVALID;
    if (rc == OK) rc = number(h->gpu, "mig_current", &have);
    if (rc == OK && !mode && has_instances(h->gpu)) rc = IN_USE;
    if (rc == OK && !skip) {
        set(&persistent, h->gpu, "mig_pending", mode);
        int held = number_or(h->gpu, "busy", 0) || (field(h->gpu, "processes", busy, sizeof busy) == OK && *busy);
        *activation = have != mode && held ? IN_USE : OK;
        if (*activation == OK) {
            set(&persistent, h->gpu, "mig_current", mode);
            if (mode) unset(&volatiles, h->gpu, "compute_mode");
        }
    }
    return done(h, "nvmlDeviceSetMigMode", one(mode), rc, !skip);
}

/* `nvidia-smi --gpu-reset`, which NVML does not offer. A GPU in use refuses it. Otherwise pending modes
 * become current, and settings are lost. Only tests call this. */
int simulatedGpuReset(u32 gpu) {
    char processes[TEXT];
    if (!initialised || gpu >= GPUS) return INVALID;
    int rc = lock_state(1);
    if (rc != OK) return rc;
    if (number_or((int)gpu, "busy", 0) || (field((int)gpu, "processes", processes, sizeof processes) == OK && *processes)) rc = IN_USE;
    if (rc == OK) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "gpu%u.", gpu);
        settle((int)gpu);
        for (int i = volatiles.count - 1; i >= 0; i--)
            if (!strncmp(volatiles.rows[i].key, prefix, strlen(prefix))) drop(&volatiles, volatiles.rows[i].key);
        rc = save_state();
    }
    unlock_state();
    return rc;
}

/* ---- MIG: profiles. gpuN.mig_profile.INDEX = id,slices,most,size,memory MB,SMs,copy,decoder,encoder,jpeg,ofa,p2p;name;start,start … */

struct profile { u32 index, id, slices, most, size; u64 memory; u32 multiprocessors, engines[5], p2p; char name[96]; u32 starts[8], places; };

#define PROFILES 0x12

static int profile_at(int gpu, u32 index, struct profile *out) {
    char name[32], value[256];
    if (index >= PROFILES) return INVALID;
    snprintf(name, sizeof name, "mig_profile.%u", index);
    int rc = field(gpu, name, value, sizeof value);
    if (rc != OK) return rc;
    const char *at = value;
    u64 v[12];
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 12; i++) { v[i] = digits(&at); if (*at) at++; }
    out->index = index, out->id = (u32)v[0], out->slices = (u32)v[1], out->most = (u32)v[2], out->size = (u32)v[3], out->memory = v[4];
    out->multiprocessors = (u32)v[5], out->p2p = (u32)v[11];
    for (int i = 0; i < 5; i++) out->engines[i] = (u32)v[6 + i];
    size_t length = strcspn(at, ";");
    snprintf(out->name, sizeof out->name, "%.*s", (int)(length < 95 ? length : 95), at);
    for (at += length; *at && out->places < 8;) { at++; out->starts[out->places++] = (u32)digits(&at); }
    return OK;
}

static int profile_of(int gpu, u32 id, struct profile *out) {
    for (u32 index = 0; index < PROFILES; index++)
        if (profile_at(gpu, index, out) == OK && out->id == id) return OK;
    return INVALID;
}

static int begin_mig(struct handle *h) {
    u64 on = 0;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = number(h->gpu, "mig_current", &on);
    return rc == OK && !on ? NOT_SUPPORTED : rc;
}

struct gi_profile { u32 id, p2p, slices, most, multiprocessors, engines[5]; u64 memory; };
struct gi_profile_v2 { u32 version, id, p2p, slices, most, multiprocessors, engines[5]; u64 memory; char name[96]; };

int nvmlDeviceGetGpuInstanceProfileInfo(struct handle *h, u32 index, struct gi_profile *out) {
    struct profile p;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = profile_at(h->gpu, index, &p);
    if (rc == OK) {
        out->id = p.id, out->p2p = p.p2p, out->slices = p.slices, out->most = p.most, out->multiprocessors = p.multiprocessors;
        memcpy(out->engines, p.engines, sizeof p.engines);
        out->memory = p.memory;
    }
    return finish(rc);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(struct handle *h, u32 index, struct gi_profile_v2 *out) {
    struct profile p;
    if (out->version != (2u << 24 | sizeof *out)) return WRONG_VERSION;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = profile_at(h->gpu, index, &p);
    if (rc == OK) {
        out->id = p.id, out->p2p = p.p2p, out->slices = p.slices, out->most = p.most, out->multiprocessors = p.multiprocessors;
        memcpy(out->engines, p.engines, sizeof p.engines);
        out->memory = p.memory;
        snprintf(out->name, sizeof out->name, "MIG %.90s", p.name);
    }
    return finish(rc);
}

/* ---- MIG: GPU instances. gpuN.gi.ID = profile id,start,size */

struct instance { u32 profile, start, size; };

static int instance_at(int gpu, u32 id, struct instance *out) {
    char key[48];
    snprintf(key, sizeof key, "gpu%d.gi.%u", gpu, id);
    const char *value = id < INSTANCES ? find(&volatiles, key) : NULL;
    if (!value) return NOT_FOUND;
    out->profile = (u32)digits(&value), value++;
    out->start = (u32)digits(&value), value++;
    out->size = (u32)digits(&value);
    return OK;
}

static int fits(int gpu, const struct profile *p, u32 start) {
    u32 same = 0;
    for (u32 id = 0; id < INSTANCES; id++) {
        struct instance other;
        if (instance_at(gpu, id, &other) != OK) continue;
        if (start < other.start + other.size && other.start < start + p->size) return 0;
        same += other.profile == p->id;
    }
    return same < p->most;
}

struct placement { u32 start, size; };

/* Without a requested placement, choose the last one that fits: profiles that fit only at the front keep
 * their space. */
static int create_instance(struct handle *h, u32 id, const struct placement *wanted, struct handle **out) {
    struct profile p;
    u64 on = 0;
    int skip, place_found = -1, rc = change(h, DEVICE, "gpu_instance", &skip);
    if (rc == OK) rc = number(h->gpu, "mig_current", &on);
    if (rc == OK && !on) rc = NOT_SUPPORTED;
    if (rc == OK) rc = profile_of(h->gpu, id, &p);
    for (u32 i = 0; rc == OK && i < p.places; i++)
        if ((!wanted || (wanted->start == p.starts[i] && wanted->size == p.size)) && fits(h->gpu, &p, p.starts[i])) place_found = (int)p.starts[i];
    if (rc == OK && place_found < 0) rc = NO_RESOURCES;
    if (rc == OK) {
        struct instance other;
        u32 fresh = 1;
        char key[48], value[48];
        while (fresh < INSTANCES && instance_at(h->gpu, fresh, &other) == OK) fresh++;
        snprintf(key, sizeof key, "gpu%d.gi.%u", h->gpu, fresh);
        snprintf(value, sizeof value, "%u,%d,%u", p.id, place_found, p.size);
        put(&volatiles, key, value);
        *out = handle(&instances[h->gpu][fresh], GPU_INSTANCE, h->gpu, (int)fresh, 0);
    }
    return done(h, "nvmlDeviceCreateGpuInstance", one(id), rc, 1);
}

int nvmlDeviceCreateGpuInstance(struct handle *h, u32 id, struct handle **out) { return create_instance(h, id, NULL, out); }

int nvmlDeviceCreateGpuInstanceWithPlacement(struct handle *h, u32 id, const struct placement *wanted, struct handle **out) {
    return create_instance(h, id, wanted, out);
}

int nvmlDeviceGetGpuInstances(struct handle *h, u32 profile, struct handle **out, u32 *count) {
    struct instance found;
    struct profile p;
    int rc = begin_mig(h);
    if (rc == OK) rc = profile_of(h->gpu, profile, &p);
    if (rc == OK) {
        *count = 0;
        for (u32 id = 0; id < INSTANCES; id++)
            if (instance_at(h->gpu, id, &found) == OK && found.profile == profile) {
                if (out) out[*count] = handle(&instances[h->gpu][id], GPU_INSTANCE, h->gpu, (int)id, 0);
                ++*count;
            }
    }
    return finish(rc);
}

int nvmlDeviceGetGpuInstanceById(struct handle *h, u32 id, struct handle **out) {
    struct instance found;
    int rc = begin_mig(h);
    if (rc == OK) rc = instance_at(h->gpu, id, &found);
    if (rc == OK) *out = handle(&instances[h->gpu][id], GPU_INSTANCE, h->gpu, (int)id, 0);
    return finish(rc);
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(struct handle *h, u32 id, u32 *out) {
    struct profile p;
    int rc = begin_mig(h);
    if (rc == OK) rc = profile_of(h->gpu, id, &p);
    if (rc == OK) {
        *out = 0;
        for (u32 i = 0; i < p.places; i++) *out += (u32)fits(h->gpu, &p, p.starts[i]);
        if (*out > p.most) *out = p.most;
    }
    return finish(rc);
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct handle *h, u32 id, struct placement *out, u32 *count) {
    struct profile p;
    int rc = begin_mig(h);
    if (rc == OK) rc = profile_of(h->gpu, id, &p);
    if (rc == OK) {
        u32 room = *count;
        for (u32 i = 0; out && i < p.places && i < room; i++) out[i].start = p.starts[i], out[i].size = p.size;
        *count = p.places;
        if (out && room < p.places) rc = SMALL;
    }
    return finish(rc);
}

int nvmlDeviceGetGpuInstancePossiblePlacements(struct handle *h, u32 id, struct placement *out, u32 *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(h, id, out, count);
}

struct gi_info { struct handle *device; u32 id, profile; struct placement placement; };

int nvmlGpuInstanceGetInfo(struct handle *h, struct gi_info *out) {
    struct instance found;
    int rc = begin(h, GPU_INSTANCE, 0);
    if (rc == OK) rc = instance_at(h->gpu, (u32)h->gi, &found);
    if (rc == OK) {
        out->device = &devices[h->gpu], out->id = (u32)h->gi, out->profile = found.profile;
        out->placement.start = found.start, out->placement.size = found.size;
    }
    return finish(rc);
}

/* ---- MIG: compute instances. gpuN.gi.ID.ci.ID = profile,slices */

static int compute_at(int gpu, int gi, u32 ci, u32 *profile, u32 *slices) {
    char key[64];
    snprintf(key, sizeof key, "gpu%d.gi.%d.ci.%u", gpu, gi, ci);
    const char *value = ci < INSTANCES ? find(&volatiles, key) : NULL;
    if (!value) return NOT_FOUND;
    *profile = (u32)digits(&value), value++;
    *slices = (u32)digits(&value);
    return OK;
}

static u32 used_slices(int gpu, int gi) {
    u32 profile, slices, used = 0;
    for (u32 ci = 0; ci < INSTANCES; ci++)
        if (compute_at(gpu, gi, ci, &profile, &slices) == OK) used += slices;
    return used;
}

int nvmlGpuInstanceDestroy(struct handle *h) {
    struct instance found;
    char key[48];
    int skip, rc = change(h, GPU_INSTANCE, "gpu_instance", &skip);
    if (rc == OK) rc = instance_at(h->gpu, (u32)h->gi, &found);
    if (rc == OK && used_slices(h->gpu, h->gi)) rc = IN_USE;
    if (rc == OK && !skip) {
        snprintf(key, sizeof key, "gpu%d.gi.%d", h->gpu, h->gi);
        drop(&volatiles, key);
    }
    return done(h, "nvmlGpuInstanceDestroy", one((u64)h->gi), rc, !skip);
}

/* Returns the slices of compute profile `index` in this GPU instance; 0 if it has no such profile. */
static u32 compute_slices(struct handle *h, u32 index, struct profile *p) {
    static const u32 slices[] = {1, 2, 3, 4, 7, 8, 6};
    struct instance found;
    if (index > 6 || instance_at(h->gpu, (u32)h->gi, &found) != OK || profile_of(h->gpu, found.profile, p) != OK) return 0;
    return slices[index] <= p->slices ? slices[index] : 0;
}

struct ci_profile { u32 id, slices, most, multiprocessors, engines[5]; };
struct ci_profile_v2 { u32 version, id, slices, most, multiprocessors, engines[5]; char name[96]; };

static int compute_profile(struct handle *h, u32 index, u32 engine, struct ci_profile *out, char *name) {
    struct profile p;
    int rc = begin(h, GPU_INSTANCE, 0);
    u32 slices = rc == OK ? compute_slices(h, index, &p) : 0;
    if (rc == OK && (engine || !slices)) rc = NOT_SUPPORTED;
    if (rc == OK) {
        out->id = index, out->slices = slices, out->most = p.slices / slices;
        out->multiprocessors = p.multiprocessors * slices / p.slices;
        memcpy(out->engines, p.engines, sizeof p.engines);
        if (name && slices == p.slices) snprintf(name, 96, "MIG %.70s", p.name);
        else if (name) snprintf(name, 96, "MIG %uc.%.70s", slices, p.name);
    }
    return finish(rc);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct handle *h, u32 index, u32 engine, struct ci_profile *out) {
    return compute_profile(h, index, engine, out, NULL);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct handle *h, u32 index, u32 engine, struct ci_profile_v2 *out) {
    if (out->version != (2u << 24 | sizeof *out)) return WRONG_VERSION;
    return compute_profile(h, index, engine, (struct ci_profile *)&out->id, out->name);
}

int nvmlGpuInstanceCreateComputeInstance(struct handle *h, u32 index, struct handle **out) {
    struct profile p;
    int skip, rc = change(h, GPU_INSTANCE, "compute_instance", &skip);
    u32 slices = rc == OK ? compute_slices(h, index, &p) : 0;
    if (rc == OK && !slices) rc = INVALID;
    if (rc == OK && used_slices(h->gpu, h->gi) + slices > p.slices) rc = NO_RESOURCES;
    if (rc == OK) {
        u32 ci = 0, a, b;
        char key[64], value[32];
        while (compute_at(h->gpu, h->gi, ci, &a, &b) == OK) ci++;
        snprintf(key, sizeof key, "gpu%d.gi.%d.ci.%u", h->gpu, h->gi, ci);
        snprintf(value, sizeof value, "%u,%u", index, slices);
        put(&volatiles, key, value);
        *out = handle(&computes[h->gpu][h->gi][ci], COMPUTE_INSTANCE, h->gpu, h->gi, (int)ci);
    }
    return done(h, "nvmlGpuInstanceCreateComputeInstance", one(index), rc, 1);
}

int nvmlGpuInstanceGetComputeInstances(struct handle *h, u32 index, struct handle **out, u32 *count) {
    u32 profile, slices;
    int rc = begin(h, GPU_INSTANCE, 0);
    if (rc == OK) {
        *count = 0;
        for (u32 ci = 0; ci < INSTANCES; ci++)
            if (compute_at(h->gpu, h->gi, ci, &profile, &slices) == OK && profile == index) {
                if (out) out[*count] = handle(&computes[h->gpu][h->gi][ci], COMPUTE_INSTANCE, h->gpu, h->gi, (int)ci);
                ++*count;
            }
    }
    return finish(rc);
}

int nvmlGpuInstanceGetComputeInstanceById(struct handle *h, u32 ci, struct handle **out) {
    u32 profile, slices;
    int rc = begin(h, GPU_INSTANCE, 0);
    if (rc == OK) rc = compute_at(h->gpu, h->gi, ci, &profile, &slices);
    if (rc == OK) *out = handle(&computes[h->gpu][h->gi][ci], COMPUTE_INSTANCE, h->gpu, h->gi, (int)ci);
    return finish(rc);
}

int nvmlGpuInstanceGetComputeInstanceRemainingCapacity(struct handle *h, u32 index, u32 *out) {
    struct profile p;
    int rc = begin(h, GPU_INSTANCE, 0);
    u32 slices = rc == OK ? compute_slices(h, index, &p) : 0;
    if (rc == OK && !slices) rc = INVALID;
    if (rc == OK) *out = (p.slices - used_slices(h->gpu, h->gi)) / slices;
    return finish(rc);
}

struct ci_info { struct handle *device, *instance; u32 id, profile; struct placement placement; };

int nvmlComputeInstanceGetInfo_v2(struct handle *h, struct ci_info *out) {
    u32 profile, slices;
    int rc = begin(h, COMPUTE_INSTANCE, 0);
    if (rc == OK) rc = compute_at(h->gpu, h->gi, (u32)h->ci, &profile, &slices);
    if (rc == OK) {
        out->device = &devices[h->gpu], out->instance = handle(&instances[h->gpu][h->gi], GPU_INSTANCE, h->gpu, h->gi, 0);
        out->id = (u32)h->ci, out->profile = profile, out->placement.start = 0, out->placement.size = slices;
    }
    return finish(rc);
}

int nvmlComputeInstanceGetInfo(struct handle *h, struct ci_info *out) { return nvmlComputeInstanceGetInfo_v2(h, out); }

int nvmlComputeInstanceDestroy(struct handle *h) {
    u32 profile, slices;
    char key[64];
    int skip, rc = change(h, COMPUTE_INSTANCE, "compute_instance", &skip);
    if (rc == OK) rc = compute_at(h->gpu, h->gi, (u32)h->ci, &profile, &slices);
    if (rc == OK && !skip) {
        snprintf(key, sizeof key, "gpu%d.gi.%d.ci.%d", h->gpu, h->gi, h->ci);
        drop(&volatiles, key);
    }
    return done(h, "nvmlComputeInstanceDestroy", one((u64)h->ci), rc, !skip);
}

/* ---- MIG devices: one per compute instance */

int nvmlDeviceGetMaxMigDeviceCount(struct handle *h, u32 *out) {
    u64 value = 0;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) rc = number(h->gpu, "mig_slices", &value);
    if (rc == OK) *out = (u32)value;
    return finish(rc);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *h, u32 index, struct handle **out) {
    u32 at = 0, profile, slices;
    int rc = begin(h, DEVICE, 0);
    if (rc == OK) {
        rc = NOT_FOUND;
        for (int gi = 0; gi < INSTANCES; gi++)
            for (u32 ci = 0; ci < INSTANCES; ci++)
                if (compute_at(h->gpu, gi, ci, &profile, &slices) == OK && at++ == index)
                    *out = handle(&migs[h->gpu][gi][ci], MIG_DEVICE, h->gpu, gi, (int)ci), rc = OK;
    }
    return finish(rc);
}

int nvmlDeviceIsMigDeviceHandle(struct handle *h, u32 *out) {
    pthread_mutex_lock(&mutex);
    int rc = !initialised ? UNINITIALIZED : genuine(h) ? OK : INVALID;
    if (rc == OK) *out = h->kind == MIG_DEVICE;
    return finish(rc);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *h, struct handle **out) {
    int rc = begin(h, MIG_DEVICE, 0);
    if (rc == OK) *out = &devices[h->gpu];
    return finish(rc);
}

int nvmlDeviceGetGpuInstanceId(struct handle *h, u32 *out) {
    int rc = begin(h, MIG_DEVICE, 0);
    if (rc == OK) *out = (u32)h->gi;
    return finish(rc);
}

int nvmlDeviceGetComputeInstanceId(struct handle *h, u32 *out) {
    int rc = begin(h, MIG_DEVICE, 0);
    if (rc == OK) *out = (u32)h->ci;
    return finish(rc);
}

static int is_mig(struct handle *h) { return initialised && genuine(h) && h->kind == MIG_DEVICE; }

int nvmlDeviceGetName(struct handle *h, char *out, u32 size) {
    char name[TEXT], whole[TEXT + 128];
    struct instance found;
    struct profile p;
    if (!is_mig(h)) return get_text(h, "name", out, size);
    int rc = begin(h, MIG_DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, "name", name, sizeof name);
    if (rc == OK) rc = instance_at(h->gpu, (u32)h->gi, &found);
    if (rc == OK) rc = profile_of(h->gpu, found.profile, &p);
    if (rc == OK) snprintf(whole, sizeof whole, "%s MIG %s", name, p.name), rc = give(whole, out, size);
    return finish(rc);
}

/* Returns the UUID of the GPU with the numbers of the instance in its last group. */
int nvmlDeviceGetUUID(struct handle *h, char *out, u32 size) {
    char uuid[TEXT], whole[TEXT + 16];
    if (!is_mig(h)) return get_text(h, "uuid", out, size);
    int rc = begin(h, MIG_DEVICE, 0);
    if (rc == OK) rc = field(h->gpu, "uuid", uuid, sizeof uuid);
    if (rc == OK && strlen(uuid) == 40) {
        snprintf(uuid + 36, 5, "%02d%02d", h->gi, h->ci);
        snprintf(whole, sizeof whole, "MIG%s", uuid + 3);
        rc = give(whole, out, size);
    }
    return finish(rc);
}

/* ---- generated by library.py from here on */
