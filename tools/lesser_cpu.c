/* Preloaded by tools/lesser_cpu.py: the CPUID instruction of this process lacks the bits that LESSER_CPU lists.

CPUID raises SIGSEGV once Linux is asked for it (arch_prctl, ARCH_SET_CPUID). Threads and forks inherit that; a program
that is executed has the library loaded again. The handler answers CPUID and hands every other SIGSEGV to the handler
that the program believes to have installed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, EXTENDED_FEATURES = 7 };

typedef int (*sigaction_function)(int, const struct sigaction *, struct sigaction *);
typedef int (*sigmask_function)(int, const sigset_t *, sigset_t *);

static struct sigaction programs; /* what the program wants done about SIGSEGV */
static pid_t owner; /* of this memory, once begun: the child of a vfork has that of its parent */
static uint32_t hidden[2][4]; /* bits of EAX, EBX, ECX, EDX in subleaves 0 and 1 of leaf 7 */

/* A system call that leaves errno alone. */
static long system_call(long number, long first, long second, long third) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(first), "S"(second), "d"(third)
                   : "rcx", "r11", "memory");
  return result;
}

static int real_sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
  static sigaction_function next;
  if (!next) next = (sigaction_function)dlsym(RTLD_NEXT, "sigaction");
  return next(number, wanted, before);
}

static void answer_cpuid(greg_t *registers) {
  uint32_t leaf = registers[REG_RAX], subleaf = registers[REG_RCX], found[4];
  system_call(SYS_arch_prctl, ARCH_SET_CPUID, 1, 0);
  __asm__ volatile("cpuid"
                   : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3])
                   : "a"(leaf), "c"(subleaf));
  system_call(SYS_arch_prctl, ARCH_SET_CPUID, 0, 0);
  if (leaf == EXTENDED_FEATURES && subleaf < 2)
    for (int i = 0; i < 4; i++) found[i] &= ~hidden[subleaf][i];
  registers[REG_RAX] = found[0];
  registers[REG_RBX] = found[1];
  registers[REG_RCX] = found[2];
  registers[REG_RDX] = found[3];
  registers[REG_RIP] += 2;
}

static void on_segv(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  /* A general protection fault, as CPUID's is, has this code and no address; the instruction can be read then. */
  if (info->si_code == SI_KERNEL) {
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (at[0] == 0x0F && at[1] == 0xA2) {
      answer_cpuid(registers);
      return;
    }
  }
  struct sigaction chosen = programs;
  if (chosen.sa_handler == SIG_IGN && info->si_code <= 0) return; /* sent by a process, and ignored */
  if (chosen.sa_handler == SIG_DFL || chosen.sa_handler == SIG_IGN) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    real_sigaction(SIGSEGV, &plain, NULL);
    system_call(SYS_tgkill, getpid(), system_call(SYS_gettid, 0, 0, 0), SIGSEGV);
    return;
  }
  if (chosen.sa_flags & SA_RESETHAND) programs.sa_handler = SIG_DFL;
  if (chosen.sa_flags & SA_SIGINFO)
    chosen.sa_sigaction(number, info, context);
  else
    chosen.sa_handler(number);
}

int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
  if (number == SIGSEGV && owner) {
    struct sigaction was = programs;
    if (wanted && owner == getpid()) programs = *wanted;
    if (before) *before = was;
    return 0;
  }
  if (!wanted || !owner) return real_sigaction(number, wanted, before);
  struct sigaction open = *wanted;
  sigdelset(&open.sa_mask, SIGSEGV);
  return real_sigaction(number, &open, before);
}

static sighandler_t install_simple(int number, sighandler_t handler, int flags) {
  struct sigaction wanted = {.sa_handler = handler, .sa_flags = flags}, before;
  return sigaction(number, &wanted, &before) ? SIG_ERR : before.sa_handler;
}

sighandler_t signal(int number, sighandler_t handler) { return install_simple(number, handler, SA_RESTART); }
sighandler_t bsd_signal(int number, sighandler_t handler) { return install_simple(number, handler, SA_RESTART); }
sighandler_t ssignal(int number, sighandler_t handler) { return install_simple(number, handler, SA_RESTART); }
sighandler_t sysv_signal(int number, sighandler_t handler) {
  return install_simple(number, handler, SA_RESETHAND | SA_NODEFER);
}
sighandler_t __sysv_signal(int number, sighandler_t handler) { return sysv_signal(number, handler); }

/* CPUID ends a program that blocks SIGSEGV. */
static int set_mask(const char *name, sigmask_function *next, int how, const sigset_t *wanted, sigset_t *before) {
  if (!*next) *next = (sigmask_function)dlsym(RTLD_NEXT, name);
  if (!wanted || how == SIG_UNBLOCK || !owner) return (*next)(how, wanted, before);
  sigset_t open = *wanted;
  sigdelset(&open, SIGSEGV);
  return (*next)(how, &open, before);
}

int sigprocmask(int how, const sigset_t *wanted, sigset_t *before) {
  static sigmask_function next;
  return set_mask("sigprocmask", &next, how, wanted, before);
}

int pthread_sigmask(int how, const sigset_t *wanted, sigset_t *before) {
  static sigmask_function next;
  return set_mask("pthread_sigmask", &next, how, wanted, before);
}

static void own(void) { owner = getpid(); }

__attribute__((constructor)) static void begin(void) {
  const char *bits = getenv("LESSER_CPU");
  uint32_t(*h)[4] = hidden;
  if (!bits || sscanf(bits, "%x,%x,%x,%x,%x,%x,%x,%x", &h[0][0], &h[0][1], &h[0][2], &h[0][3], &h[1][0], &h[1][1],
                      &h[1][2], &h[1][3]) != 8) {
    fputs("lesser_cpu: LESSER_CPU does not list eight masks: start programs with tools/lesser_cpu.py\n", stderr);
    _exit(2);
  }
  /* On the stack at hand: a program's alternate stack may be gone (a library in Rust leaves one behind that is unmapped),
     and the kernel then ends the process. */
  struct sigaction ours = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
  real_sigaction(SIGSEGV, &ours, &programs); /* a program may have been started with the signal ignored */
  own();
  pthread_atfork(NULL, NULL, own);
  sigset_t segv;
  sigemptyset(&segv);
  sigaddset(&segv, SIGSEGV);
  sigprocmask(SIG_UNBLOCK, &segv, NULL);
  if (system_call(SYS_arch_prctl, ARCH_SET_CPUID, 0, 0) != 0) {
    fputs("lesser_cpu: this machine has no CPUID faulting\n", stderr);
    _exit(2);
  }
}
