// The library's calls of glibc, bound to the versions of those symbols that glibc 2.28 has
// (manylinux_2_28).
//
// A linker binds a call to the newest version of a symbol that the build machine's glibc has, and
// glibc 2.34 gave all of libpthread and libdl a new one. libstdc++.a and libcudart_static.a, which
// we link in, are compiled for that glibc, so their calls cannot be changed at their source.
// IntarsiaLibrary.cmake therefore passes ld's --wrap for each name below (it reads the rows of this
// file): every call of `name` becomes one of `__wrap_name`, which jumps to the older version.
// `.symver` is described in the manual of GNU as, the versions in glibc's `Versions` files.
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#if defined(__x86_64__)
#define INTARSIA_JUMP "jmp"
#define INTARSIA_PLT "@PLT"
#define INTARSIA_FIRST "GLIBC_2.2.5"
#define INTARSIA_DLMOPEN "GLIBC_2.3.4"
#else
#define INTARSIA_JUMP "b"
#define INTARSIA_PLT ""
#define INTARSIA_FIRST "GLIBC_2.17"  // glibc's first release for aarch64
#define INTARSIA_DLMOPEN INTARSIA_FIRST
#endif

// A section each, so that --gc-sections leaves no import behind that nobody calls.
// clang-format off
#define INTARSIA_OLDER_AT(name, version)                                        \
  asm(".pushsection .text.__wrap_" #name ",\"ax\",%progbits\n"                  \
      ".symver intarsia_older_" #name ", " #name "@" version "\n"               \
      ".globl __wrap_" #name "\n.hidden __wrap_" #name "\n"                     \
      ".type __wrap_" #name ", %function\n"                                     \
      "__wrap_" #name ": " INTARSIA_JUMP " intarsia_older_" #name INTARSIA_PLT "\n" \
      ".size __wrap_" #name ", . - __wrap_" #name "\n.popsection\n")

// The same for a symbol that glibc 2.28 has under another name.
#define INTARSIA_RENAMED(name, older)                                           \
  asm(".pushsection .text.__wrap_" #name ",\"ax\",%progbits\n"                  \
      ".globl __wrap_" #name "\n.hidden __wrap_" #name "\n"                     \
      ".type __wrap_" #name ", %function\n"                                     \
      "__wrap_" #name ": " INTARSIA_JUMP " " #older INTARSIA_PLT "\n"            \
      ".size __wrap_" #name ", . - __wrap_" #name "\n.popsection\n")
// clang-format on
#define INTARSIA_OLDER(name) INTARSIA_OLDER_AT(name, INTARSIA_FIRST)

// libm, 2.27 to 2.38: the same functions; the older ones set errno as well.
INTARSIA_OLDER(exp);
INTARSIA_OLDER(exp2);
INTARSIA_OLDER(fmod);
INTARSIA_OLDER(fmodf);
INTARSIA_OLDER(log);
INTARSIA_OLDER(log2);
INTARSIA_OLDER(pow);

// libdl, libpthread and librt, in libc since 2.34.
INTARSIA_OLDER(dlclose);
INTARSIA_OLDER(dlerror);
INTARSIA_OLDER_AT(dlmopen, INTARSIA_DLMOPEN);
INTARSIA_OLDER(dlopen);
INTARSIA_OLDER(dlsym);
INTARSIA_OLDER(dlvsym);
INTARSIA_OLDER(pthread_condattr_setpshared);
INTARSIA_OLDER(pthread_create);
INTARSIA_OLDER(pthread_detach);
INTARSIA_OLDER(pthread_getspecific);
INTARSIA_OLDER(pthread_join);
INTARSIA_OLDER(pthread_key_create);
INTARSIA_OLDER(pthread_key_delete);
INTARSIA_OLDER(pthread_kill);
INTARSIA_OLDER(pthread_mutex_trylock);
INTARSIA_OLDER(pthread_mutexattr_destroy);
INTARSIA_OLDER(pthread_mutexattr_init);
INTARSIA_OLDER(pthread_mutexattr_setpshared);
INTARSIA_OLDER(pthread_mutexattr_settype);
INTARSIA_OLDER(pthread_once);
INTARSIA_OLDER(pthread_rwlock_destroy);
INTARSIA_OLDER(pthread_rwlock_init);
INTARSIA_OLDER(pthread_rwlock_rdlock);
INTARSIA_OLDER(pthread_rwlock_timedrdlock);
INTARSIA_OLDER(pthread_rwlock_timedwrlock);
INTARSIA_OLDER(pthread_rwlock_tryrdlock);
INTARSIA_OLDER(pthread_rwlock_trywrlock);
INTARSIA_OLDER(pthread_rwlock_unlock);
INTARSIA_OLDER(pthread_rwlock_wrlock);
INTARSIA_OLDER(pthread_rwlockattr_destroy);
INTARSIA_OLDER(pthread_rwlockattr_init);
INTARSIA_OLDER(pthread_rwlockattr_setpshared);
INTARSIA_OLDER(pthread_setspecific);
INTARSIA_OLDER(pthread_spin_destroy);
INTARSIA_OLDER(pthread_spin_init);
INTARSIA_OLDER(pthread_spin_lock);
INTARSIA_OLDER(pthread_spin_trylock);
INTARSIA_OLDER(pthread_spin_unlock);
INTARSIA_OLDER(sem_destroy);
INTARSIA_OLDER(sem_init);
INTARSIA_OLDER(sem_post);
INTARSIA_OLDER(sem_timedwait);
INTARSIA_OLDER(sem_trywait);
INTARSIA_OLDER(sem_wait);
INTARSIA_OLDER(shm_open);
INTARSIA_OLDER(shm_unlink);

// 2.38, which reads "0b" as a prefix of base 2: no number that we or libstdc++ read has one.
INTARSIA_RENAMED(__isoc23_sscanf, sscanf);
INTARSIA_RENAMED(__isoc23_strtol, strtol);
INTARSIA_RENAMED(__isoc23_strtoll, strtoll);
INTARSIA_RENAMED(__isoc23_strtoul, strtoul);
INTARSIA_RENAMED(__isoc23_strtoull, strtoull);
INTARSIA_RENAMED(__isoc23_vsscanf, vsscanf);

// What 2.28 lacks under any version.
#define INTARSIA_INSTEAD(name) __wrap_##name

#pragma GCC visibility push(hidden)
extern "C" {

// 2.32: reference counts are always atomic.
char INTARSIA_INSTEAD(__libc_single_threaded) = 0;

// 2.36, for std::random_device.
uint32_t INTARSIA_INSTEAD(arc4random)() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

// 2.33; glibc's struct is the kernel's on both machines.
int INTARSIA_INSTEAD(fstat64)(int file, struct stat64* status) {
  return static_cast<int>(syscall(SYS_fstat, file, status));
}
}
#pragma GCC visibility pop
