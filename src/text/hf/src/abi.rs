//! The C functions of baton_text.h. Each checks its pointers, runs under catch_unwind and writes
//! either its result or an error.

use std::cell::Cell;
use std::panic::{self, catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use crate::bpe::{compose, Bpe, BpeSpec};
use crate::budget::Bounds;
use crate::template::{ChatTemplate, RenderLimits};
use crate::{panic_text, Code, Failure};

const ABI_VERSION: u32 = 8;
pub(crate) const OK: i32 = 0;
/// Above any vocabulary in use; a count past it is a caller's mistake, not a size to allocate.
pub(crate) const MAX_TOKENS: usize = 1 << 24;
const MAX_MERGES: usize = 1 << 24;
const MAX_PATTERNS: usize = 64;

/// baton_text_slice
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    pub(crate) data: *const u8,
    pub(crate) size: usize,
}

/// baton_text_buffer and baton_text_ids: a Vec taken apart.
#[repr(C)]
pub struct Owned<T> {
    pub(crate) data: *mut T,
    pub(crate) size: usize,
    pub(crate) capacity: usize,
}

/// baton_text_bpe_spec
#[repr(C)]
pub struct CBpeSpec {
    token_text: Slice,
    token_ends: *const u32,
    token_ids: *const u32,
    num_tokens: usize,
    merges: *const u32,
    num_merges: usize,
    patterns: *const Slice,
    num_patterns: usize,
    ignore_merges: u8,
}

/// baton_text_render_request
#[repr(C)]
pub struct CRenderRequest {
    variables_json: Slice,
    fuel: u64,
    max_output_bytes: u64,
    max_memory_bytes: u64,
    timeout_ms: u64,
    now_unix_s: i64,
    has_now: u8,
}

thread_local! {
    static HUSHED: Cell<bool> = const { Cell::new(false) };
}

/// Panics on this thread are returned as errors, so the default hook must not print them too.
pub fn hush_panics_here() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !HUSHED.get() {
                previous(info);
            }
        }));
    });
    HUSHED.set(true);
}

pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    hush_panics_here();
    let caught = catch_unwind(AssertUnwindSafe(work));
    HUSHED.set(false);
    caught.unwrap_or_else(|payload| Err(Failure::new(Code::Internal, panic_text(&*payload))))
}

/// Runs `work` and hands its result to `store`, or its failure to `error`.
///
/// SAFETY: `error` is null or points to writable memory for an Owned.
pub(crate) unsafe fn answer<T>(
    error: *mut Owned<u8>,
    work: impl FnOnce() -> Result<T, Failure>,
    store: impl FnOnce(T),
) -> i32 {
    let outcome = guarded(work);
    if !error.is_null() {
        error.write(Owned { data: std::ptr::null_mut(), size: 0, capacity: 0 });
    }
    match outcome {
        Ok(value) => {
            store(value);
            OK
        }
        Err(failure) => {
            if !error.is_null() {
                error.write(into_owned(failure.message.into_bytes()));
            }
            failure.code as i32
        }
    }
}

pub(crate) fn into_owned<T>(vec: Vec<T>) -> Owned<T> {
    let mut vec = std::mem::ManuallyDrop::new(vec);
    Owned { data: vec.as_mut_ptr(), size: vec.len(), capacity: vec.capacity() }
}

/// SAFETY: `owned` is null or holds what `into_owned` made, or zeros.
unsafe fn free_owned<T>(owned: *mut Owned<T>) {
    if owned.is_null() || (*owned).data.is_null() {
        return;
    }
    let taken = owned.replace(Owned { data: std::ptr::null_mut(), size: 0, capacity: 0 });
    drop(Vec::from_raw_parts(taken.data, taken.size, taken.capacity));
}

/// Frees what `Box::into_raw` gave.
///
/// SAFETY: `pointer` is null or such a pointer, not freed yet.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        let _ = guarded(|| {
            drop(Box::from_raw(pointer));
            Ok(())
        });
    }
}

/// SAFETY: a non-null `data` points to `len` readable elements.
pub(crate) unsafe fn array<'a, T>(
    what: &str,
    data: *const T,
    len: usize,
    max: usize,
) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if len > max {
        return Err(Failure::invalid(format!("{what}: {len} elements, more than {max}")));
    }
    if data.is_null() || !data.is_aligned() {
        return Err(Failure::invalid(format!("{what}: null or misaligned pointer")));
    }
    Ok(std::slice::from_raw_parts(data, len))
}

/// SAFETY: as `array`.
pub(crate) unsafe fn text<'a>(what: &str, slice: Slice) -> Result<&'a str, Failure> {
    let bytes = array(what, slice.data, slice.size, isize::MAX as usize)?;
    std::str::from_utf8(bytes)
        .map_err(|e| Failure::invalid(format!("{what}: invalid UTF-8 at byte {}", e.valid_up_to())))
}

/// SAFETY: a non-null pointer is valid for the call.
pub(crate) unsafe fn reference<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    Ok(&*pointer)
}

/// SAFETY: the pointers of `spec` are as baton_text.h says.
unsafe fn read_bpe_spec<'a>(spec: &CBpeSpec) -> Result<BpeSpec<'a>, Failure> {
    let all_text: &str = text("token_text", spec.token_text)?;
    let ends = array("token_ends", spec.token_ends, spec.num_tokens, MAX_TOKENS)?;
    let ids = array("token_ids", spec.token_ids, spec.num_tokens, MAX_TOKENS)?;
    let merge_words =
        array("merges", spec.merges, spec.num_merges.saturating_mul(2), 2 * MAX_MERGES)?;
    let slices = array("patterns", spec.patterns, spec.num_patterns, MAX_PATTERNS)?;
    let mut tokens = Vec::with_capacity(ids.len());
    let mut start = 0usize;
    for (end, id) in ends.iter().zip(ids) {
        let end = *end as usize;
        let token = (start <= end).then(|| all_text.get(start..end)).flatten();
        let Some(token) = token else {
            return Err(Failure::invalid(format!(
                "token {id} spans bytes {start}..{end} of {}, which is not a run of characters",
                all_text.len()
            )));
        };
        tokens.push((token, *id));
        start = end;
    }
    let patterns =
        slices.iter().map(|slice| text("pattern", *slice)).collect::<Result<Vec<_>, _>>()?;
    Ok(BpeSpec {
        tokens,
        merges: merge_words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
        patterns,
        ignore_merges: spec.ignore_merges != 0,
    })
}

#[no_mangle]
pub extern "C" fn baton_text_abi_version() -> u32 {
    ABI_VERSION
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_bpe_create(
    spec: *const CBpeSpec,
    out: *mut *mut Bpe,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        let spec = read_bpe_spec(reference("spec", spec)?)?;
        Bpe::new(&spec).map(Box::new)
    };
    answer(error, work, |bpe| out.write(Box::into_raw(bpe)))
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_bpe_encode(
    bpe: *const Bpe,
    input: Slice,
    out: *mut Owned<u32>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        reference("bpe", bpe)?.encode(text("text", input)?)
    };
    answer(error, work, |ids| out.write(into_owned(ids)))
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_bpe_free(bpe: *mut Bpe) {
    free(bpe);
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_compose(
    input: Slice,
    out: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        Ok(compose(text("text", input)?))
    };
    answer(error, work, |composed| out.write(into_owned(composed.into_bytes())))
}

#[no_mangle]
pub extern "C" fn baton_text_is_word(character: u32) -> u8 {
    let is_word = || Ok(char::from_u32(character).is_some_and(regex_syntax::is_word_character));
    guarded(is_word).unwrap_or(false) as u8
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_template_create(
    source: Slice,
    out: *mut *mut ChatTemplate,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        ChatTemplate::new(text("template", source)?).map(Box::new)
    };
    answer(error, work, |template| out.write(Box::into_raw(template)))
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_template_render(
    chat_template: *const ChatTemplate,
    request: *const CRenderRequest,
    out: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        let request = reference("request", request)?;
        let limits = RenderLimits {
            fuel: request.fuel,
            max_output_bytes: request.max_output_bytes,
            bounds: Bounds {
                memory_bytes: request.max_memory_bytes,
                timeout: Duration::from_millis(request.timeout_ms.min(3_600_000)),
            },
            now_unix_s: (request.has_now != 0).then_some(request.now_unix_s),
        };
        let variables = text("variables_json", request.variables_json)?;
        reference("chat_template", chat_template)?.render(variables, &limits)
    };
    answer(error, work, |rendered| out.write(into_owned(rendered.into_bytes())))
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_template_parts_use(chat_template: *const ChatTemplate) -> u8 {
    chat_template.as_ref().map_or(0, |chat_template| chat_template.parts_use() as u8)
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_template_reads(
    chat_template: *const ChatTemplate,
    variable: Slice,
) -> u8 {
    let read = guarded(|| {
        Ok(reference("chat_template", chat_template)?.reads(text("variable", variable)?))
    });
    read.unwrap_or(false) as u8
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_template_free(chat_template: *mut ChatTemplate) {
    free(chat_template);
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_buffer_free(buffer: *mut Owned<u8>) {
    free_owned(buffer);
}

/// # Safety
/// See baton_text.h.
#[no_mangle]
pub unsafe extern "C" fn baton_text_ids_free(ids: *mut Owned<u32>) {
    free_owned(ids);
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
