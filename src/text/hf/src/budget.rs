//! Runs untrusted work (a chat template) on a thread of its own with bounds that hold whatever the
//! work does.
//!
//! A template can double a string forty times in a few instructions, so counting instructions
//! bounds neither memory nor time, and a failed allocation would abort the process. Here the
//! allocator counts what the working thread holds. Past the bound the thread is parked inside the
//! allocator for ever (an allocator must not unwind) and its caller gets an error; past its
//! processor time the caller leaves and the thread ends by itself when its fuel is used up. Threads
//! so left behind are counted and limited.
//!
//! The stack is large because expressions nest in blocks and these in calls; only the part that is
//! used takes memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::{abi, panic_text, Code, Failure};

/// A call is refused when half of it is used (`stack_used`). Between two calls there are at most
/// 200 levels of blocks and 250 of one expression, and values nest at most 1,000 levels
/// (value::MAX_DEPTH): at 1 KiB a level far below the other half.
pub const STACK_BYTES: usize = 256 << 20;
/// Renderings left behind in this process before new ones are refused.
pub const MAX_STRAYS: u32 = 8;

/// The threads of one kind of work that were left behind. Each kind has its own: schemas come from
/// clients, and must not stop the templates of models.
pub struct Strays {
    count: AtomicU32,
    /// The work, in the plural, for messages.
    what: &'static str,
}

static TEMPLATES: Strays = Strays { count: AtomicU32::new(0), what: "renderings" };
pub static GRAMMARS: Strays = Strays { count: AtomicU32::new(0), what: "grammars" };

const RUNNING: u32 = 0;
const DONE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const ABANDONED: u32 = 3;

/// The limits of a piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub memory_bytes: u64,
    /// Processor time: on a busy machine honest work must not fail for waiting its turn. The wall
    /// clock may run PATIENCE times as long.
    pub timeout: Duration,
}

const PATIENCE: u32 = 60;

/// The state that the working thread, its allocator and the waiting thread share.
struct Session {
    state: AtomicU32,
    waiter: Thread,
}

thread_local! {
    /// Set while this thread is working under a bound; null everywhere else.
    static SESSION: Cell<*const Session> = const { Cell::new(std::ptr::null()) };
    /// Bytes this thread may still take.
    static REMAINING: Cell<i64> = const { Cell::new(0) };
    /// Where the stack of the work begins; 0 outside of `run`.
    static STACK_BEGIN: Cell<usize> = const { Cell::new(0) };
    /// Bytes at the end of the bound that bytes_above_reserve does not offer.
    static RESERVE: Cell<i64> = const { Cell::new(0) };
}

/// The system allocator plus the count of the threads that are under a bound.
pub struct CountingAllocator;

#[inline]
fn charge(bytes: i64) {
    let session = SESSION.get();
    if session.is_null() {
        return;
    }
    let remaining = REMAINING.get().saturating_sub(bytes);
    REMAINING.set(remaining);
    if remaining < 0 && bytes > 0 {
        // SAFETY: the session outlives the work: `run` keeps it alive on this thread's stack and
        // resets SESSION before that ends.
        park_for_ever(unsafe { &*session });
    }
}

#[cold]
fn park_for_ever(session: &Session) -> ! {
    let waits = session
        .state
        .compare_exchange(RUNNING, OUT_OF_MEMORY, Ordering::AcqRel, Ordering::Acquire)
        .is_ok();
    if waits {
        session.waiter.unpark();
    }
    loop {
        thread::sleep(Duration::from_secs(1 << 30));
    }
}

// SAFETY: every call is the system allocator's; `charge` neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as i64);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as i64);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        charge(-(layout.size() as i64));
        System.dealloc(pointer, layout)
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        charge(new_size as i64 - layout.size() as i64);
        System.realloc(pointer, layout, new_size)
    }
}

/// True when the caller of this thread's work has left: the work may end as soon as it can.
pub fn is_abandoned() -> bool {
    let session = SESSION.get();
    // SAFETY: as in `charge`.
    !session.is_null() && unsafe { &*session }.state.load(Ordering::Relaxed) == ABANDONED
}

/// Bytes that this thread's work may still take before it touches its reserve, a sixteenth of the
/// bound; without limit outside of `run`. Work that stops at 0 never meets the bound in the
/// allocator, where its thread would be lost.
pub fn bytes_above_reserve() -> u64 {
    if SESSION.get().is_null() {
        return u64::MAX;
    }
    u64::try_from(REMAINING.get() - RESERVE.get()).unwrap_or(0)
}

/// The address of this call's frame.
#[inline(never)]
fn stack_place() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)) as usize
}

/// Bytes of its stack that this thread's work uses at this place; 0 outside of `run`.
pub fn stack_used() -> usize {
    match STACK_BEGIN.get() {
        0 => 0,
        begin => begin.abs_diff(stack_place()),
    }
}

/// Threads that are parked or still running after their caller left.
#[cfg(test)]
pub fn num_strays() -> u32 {
    TEMPLATES.count.load(Ordering::Acquire)
}

/// The result of `work`. Code::Limit: the work went past a bound. Code::Internal: it panicked.
/// Code::Busy: there is no thread for it now.
pub fn run<T: Send + 'static>(
    bounds: &Bounds,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    run_for(&TEMPLATES, bounds, work)
}

/// `run` for a kind of work.
pub fn run_for<T: Send + 'static>(
    strays: &'static Strays,
    bounds: &Bounds,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let num_strays = strays.count.load(Ordering::Acquire);
    if num_strays >= MAX_STRAYS {
        return Err(Failure::busy(format!(
            "{num_strays} earlier {} overran their time or memory and still hold their threads",
            strays.what
        )));
    }
    let session = Arc::new(Session { state: AtomicU32::new(RUNNING), waiter: thread::current() });
    let result = Arc::new(Mutex::new(None));
    let handle = thread::Builder::new()
        .name("baton-template".to_string())
        .stack_size(STACK_BYTES)
        .spawn({
            let (session, result) = (Arc::clone(&session), Arc::clone(&result));
            let memory_bytes = i64::try_from(bounds.memory_bytes).unwrap_or(i64::MAX);
            move || work_under(&session, memory_bytes, &result, (strays, work))
        })
        .map_err(|e| Failure::busy(format!("cannot start a thread: {e}")))?;

    match wait(strays, &session, bounds.timeout, handle.as_pthread_t()) {
        DONE => {
            // Joining tells race detectors too that the thread's writes are over.
            let _ = handle.join();
            let mut slot = result.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take().unwrap_or_else(|| {
                Err(Failure::new(Code::Internal, "the rendering thread left no result"))
            })
        }
        OUT_OF_MEMORY => {
            strays.count.fetch_add(1, Ordering::AcqRel);
            let limit = bounds.memory_bytes;
            Err(Failure::limit(format!("held more than the allowed {limit} bytes of memory")))
        }
        _ => Err(Failure::limit(format!(
            "took longer than the allowed {} ms of processor time",
            bounds.timeout.as_millis()
        ))),
    }
}

/// The place where the working thread stores the result for its caller.
type Slot<T> = Mutex<Option<Result<T, Failure>>>;

fn work_under<T>(
    session: &Arc<Session>,
    memory_bytes: i64,
    slot: &Slot<T>,
    (strays, work): (&Strays, impl FnOnce() -> Result<T, Failure>),
) {
    abi::hush_panics_here();
    REMAINING.set(memory_bytes);
    RESERVE.set(memory_bytes / 16);
    STACK_BEGIN.set(stack_place());
    SESSION.set(Arc::as_ptr(session));
    let caught = catch_unwind(AssertUnwindSafe(work));
    SESSION.set(std::ptr::null());
    let outcome = caught
        .unwrap_or_else(|payload| Err(Failure::new(Code::Internal, panic_text(payload.as_ref()))));
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    match session.state.compare_exchange(RUNNING, DONE, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => session.waiter.unpark(),
        // The caller left: this thread is the stray that it counted.
        Err(_) => {
            strays.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The processor time that a thread has used; nothing when it has ended.
fn cpu_time(thread: libc::pthread_t) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the handle is neither joined nor detached, so the thread's id is valid.
    let read = unsafe {
        libc::pthread_getcpuclockid(thread, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The state the work ended in; ABANDONED when a deadline came first.
fn wait(strays: &Strays, session: &Session, timeout: Duration, thread: libc::pthread_t) -> u32 {
    let start = Instant::now();
    loop {
        let state = session.state.load(Ordering::Acquire);
        if state != RUNNING {
            return state;
        }
        let used = cpu_time(thread).unwrap_or_default();
        if used < timeout && start.elapsed() < timeout.saturating_mul(PATIENCE) {
            // Never before it could have used the rest.
            thread::park_timeout((timeout - used).max(Duration::from_millis(1)));
            continue;
        }
        // Counted before the thread can see that it was left, so the count never goes below 0.
        strays.count.fetch_add(1, Ordering::AcqRel);
        match session.state.compare_exchange(
            RUNNING,
            ABANDONED,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return ABANDONED,
            Err(state) => {
                strays.count.fetch_sub(1, Ordering::AcqRel);
                return state;
            }
        }
    }
}

/// Serialises the tests that count or leave strays.
#[cfg(test)]
pub fn stray_test_lock() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub fn num_stray_grammars() -> u32 {
    GRAMMARS.count.load(Ordering::Acquire)
}

/// Forgets strays that a test left parked on purpose.
#[cfg(test)]
pub fn reset_strays_for_test() {
    TEMPLATES.count.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(memory_bytes: u64, timeout_ms: u64) -> Bounds {
        Bounds { memory_bytes, timeout: Duration::from_millis(timeout_ms) }
    }

    #[test]
    fn a_result_comes_back() {
        let _lock = stray_test_lock();
        let sum = run(&bounds(1 << 20, 10_000), || Ok((1..=10).sum::<i32>())).unwrap();
        assert_eq!(sum, 55);
    }

    #[test]
    fn a_panic_comes_back_as_a_failure() {
        let _lock = stray_test_lock();
        let failure =
            run(&bounds(1 << 20, 10_000), || -> Result<(), Failure> { panic!("broke {}", 7) })
                .unwrap_err();
        assert_eq!(failure.code, Code::Internal);
        assert!(failure.message.contains("broke 7"), "{}", failure.message);
    }

    #[test]
    fn freed_memory_does_not_count() {
        let _lock = stray_test_lock();
        run(&bounds(1 << 20, 10_000), || {
            for _ in 0..100 {
                std::hint::black_box(vec![1u8; 512 << 10]);
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn too_much_memory_is_a_limit_and_the_process_lives() {
        let _lock = stray_test_lock();
        let start = Instant::now();
        let failure = run(&bounds(8 << 20, 60_000), || {
            let mut text = "x".to_string();
            for _ in 0..60 {
                text = text.repeat(2);
            }
            Ok(text)
        })
        .unwrap_err();
        assert_eq!(failure.code, Code::Limit);
        assert!(failure.message.contains("8388608"), "{}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "must not wait for the deadline");
        reset_strays_for_test();
    }

    #[test]
    fn strays_are_limited_and_come_back() {
        let _lock = stray_test_lock();
        reset_strays_for_test();
        let stop = Arc::new(AtomicU32::new(0));
        for _ in 0..MAX_STRAYS {
            let stop = Arc::clone(&stop);
            let failure = run(&bounds(1 << 20, 1), move || {
                while stop.load(Ordering::Acquire) == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            })
            .unwrap_err();
            assert!(failure.message.contains("1 ms"), "{}", failure.message);
        }
        let refused = run(&bounds(1 << 20, 10_000), || Ok(())).unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        assert!(refused.message.contains("8 earlier"), "{}", refused.message);
        stop.store(1, Ordering::Release);
        while TEMPLATES.count.load(Ordering::Acquire) != 0 {
            thread::sleep(Duration::from_millis(1));
        }
        run(&bounds(1 << 20, 10_000), || Ok(())).unwrap();
    }
}
