//! One HTTP request by libcurl behind the C functions of baton_hub.h.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use curl::easy::{Easy2, Handler, List, WriteError};

/// baton_hub_code
#[repr(i32)]
#[derive(Clone, Copy)]
enum Code {
    Ok = 0,
    NoHost = 1,
    Refused = 2,
    Late = 3,
    Tls = 4,
    Broken = 5,
    Stopped = 6,
    BadRequest = 7,
    Internal = 8,
}

/// baton_hub_request
#[repr(C)]
pub struct CRequest {
    url: *const c_char,
    is_head: u8,
    authorization: *const c_char,
    user_agent: *const c_char,
    begin: u64,
    if_range: *const c_char,
    connect_timeout_s: u64,
    silence_timeout_s: u64,
    ca_file: *const c_char,
    ca_dirs: *const c_char,
    no_proxy: *const c_char,
    state: *mut c_void,
    on_head: extern "C" fn(*mut c_void, u32, *const c_char, usize, *const c_char) -> c_int,
    on_body: extern "C" fn(*mut c_void, *const u8, usize) -> c_int,
}

/// The header of the answer that is being read.
#[derive(Default)]
struct Head {
    status: u32,
    lines: Vec<u8>,
    location: bool,
}

impl Head {
    /// One header line. A status line begins a new answer: the one before was a proxy's answer to
    /// CONNECT or an interim one.
    fn add(&mut self, line: &[u8]) {
        if line.starts_with(b"HTTP/") {
            *self = Head::default();
            let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
            let number = words.nth(1).and_then(|word| std::str::from_utf8(word).ok());
            self.status = number.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        } else if !line.trim_ascii().is_empty() {
            self.location |= line.to_ascii_lowercase().starts_with(b"location:");
            self.lines.extend_from_slice(line);
        }
    }
}

/// The callbacks of libcurl while an answer arrives. They hand the body on once the head was; they
/// pass over the body of a redirect, whose target is known only at the end.
struct Answer<'a> {
    request: &'a CRequest,
    head: Head,
    is_told: bool,
    is_stopped: bool,
}

impl Answer<'_> {
    fn tell_head(&mut self, redirect: Option<&CStr>) {
        if self.is_told || self.is_stopped {
            return;
        }
        self.is_told = true;
        let lines = &self.head.lines;
        let redirect = redirect.map_or(std::ptr::null(), CStr::as_ptr);
        let go_on = (self.request.on_head)(
            self.request.state,
            self.head.status,
            lines.as_ptr().cast(),
            lines.len(),
            redirect,
        );
        self.is_stopped = go_on == 0;
    }

    fn is_redirect(&self) -> bool {
        self.head.location && self.head.status / 100 == 3
    }
}

impl Handler for Answer<'_> {
    fn header(&mut self, line: &[u8]) -> bool {
        if !self.is_told {
            self.head.add(line);
        }
        self.head.lines.len() <= 1 << 20
    }

    fn write(&mut self, data: &[u8]) -> Result<usize, WriteError> {
        if self.is_redirect() {
            return Ok(data.len());
        }
        self.tell_head(None);
        if !self.is_stopped {
            let go_on = (self.request.on_body)(self.request.state, data.as_ptr(), data.len());
            self.is_stopped = go_on == 0;
        }
        // Any other number than that of the bytes ends the transfer.
        Ok(if self.is_stopped { 0 } else { data.len() })
    }
}

/// A null pointer is None. The caller promises texts that end with a zero byte.
fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>, (Code, String)> {
    if pointer.is_null() {
        return Ok(None);
    }
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| (Code::BadRequest, "a text is not UTF-8".to_string()))
}

fn code_of(error: &curl::Error) -> Code {
    if error.is_couldnt_resolve_host() || error.is_couldnt_resolve_proxy() {
        Code::NoHost
    } else if error.is_operation_timedout() {
        Code::Late
    } else if error.is_couldnt_connect() {
        Code::Refused
    } else if error.is_ssl_connect_error()
        || error.is_peer_failed_verification()
        || error.is_ssl_issuer_error()
        || error.is_ssl_cipher()
    {
        Code::Tls
    } else if error.is_url_malformed()
        || error.is_unsupported_protocol()
        || error.is_ssl_cacert_badfile()
    {
        Code::BadRequest
    } else {
        Code::Broken
    }
}

fn failure(error: &curl::Error) -> (Code, String) {
    let reason = error.extra_description().unwrap_or_else(|| error.description());
    let code = code_of(error);
    // A tunnel that the proxy refused is reported as a broken answer.
    let is_proxy = reason.contains("CONNECT") || reason.contains("proxy");
    let code = if is_proxy && matches!(code, Code::Broken) { Code::Refused } else { code };
    (code, reason.to_string())
}

/// HTTP_PROXY, which libcurl itself does not read because a CGI client could set it.
fn upper_case_http_proxy(url: &str) -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is_http = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http:"));
    if !is_http || set("http_proxy").is_some() || std::env::var_os("REQUEST_METHOD").is_some() {
        return None;
    }
    set("HTTP_PROXY")
}

fn configure(easy: &mut Easy2<Answer>, request: &CRequest) -> Result<(), (Code, String)> {
    let url = text(request.url)?.unwrap_or("");
    let authorization = text(request.authorization)?;
    let (user_agent, ca_file) = (text(request.user_agent)?, text(request.ca_file)?);
    let (ca_dirs, no_proxy) = (text(request.ca_dirs)?, text(request.no_proxy)?);
    let if_range = text(request.if_range)?;
    let mut set = || -> Result<(), curl::Error> {
        easy.url(url)?;
        easy.nobody(request.is_head != 0)?;
        easy.signal(false)?;
        easy.follow_location(false)?;
        easy.useragent(user_agent.unwrap_or("baton"))?;
        easy.connect_timeout(Duration::from_secs(request.connect_timeout_s))?;
        easy.low_speed_limit(1)?;
        easy.low_speed_time(Duration::from_secs(request.silence_timeout_s))?;
        if let Some(file) = ca_file {
            easy.cainfo(file)?;
        }
        if let Some(dirs) = ca_dirs {
            easy.capath(dirs)?;
        }
        if let Some(proxy) = upper_case_http_proxy(url) {
            easy.proxy(&proxy)?;
        }
        if let Some(hosts) = no_proxy {
            easy.noproxy(hosts)?;
        }
        if request.begin > 0 {
            easy.range(&format!("{}-", request.begin))?;
        }
        let mut headers = List::new();
        if let Some(value) = authorization {
            headers.append(&format!("Authorization: {value}"))?;
        }
        if let (Some(value), true) = (if_range, request.begin > 0) {
            headers.append(&format!("If-Range: {value}"))?;
        }
        easy.http_headers(headers)?;
        Ok(())
    };
    set().map_err(|error| failure(&error))
}

fn call(request: &CRequest) -> Result<(), (Code, String)> {
    let answer = Answer { request, head: Head::default(), is_told: false, is_stopped: false };
    let mut easy = Easy2::new(answer);
    configure(&mut easy, request)?;
    let result = easy.perform();
    if easy.get_ref().is_stopped {
        return Err((Code::Stopped, "stopped by the caller".to_string()));
    }
    result.map_err(|error| failure(&error))?;
    let redirect = easy.redirect_url_bytes().ok().flatten().map(<[u8]>::to_vec);
    let redirect = redirect.and_then(|bytes| CString::new(bytes).ok());
    easy.get_mut().tell_head(redirect.as_deref());
    if easy.get_ref().is_stopped {
        return Err((Code::Stopped, "stopped by the caller".to_string()));
    }
    Ok(())
}

/// Copies `message` and a zero byte, cut at a character's end.
fn write_error(message: &str, error: *mut c_char, error_size: usize) {
    if error.is_null() || error_size == 0 {
        return;
    }
    let mut size = message.len().min(error_size - 1);
    while !message.is_char_boundary(size) {
        size -= 1;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(message.as_ptr(), error.cast(), size);
        *error.add(size) = 0;
    }
}

/// See baton_hub.h.
///
/// # Safety
/// `request` is null or valid for the call, and `error` holds `error_size` bytes.
#[no_mangle]
pub unsafe extern "C" fn baton_hub_call(
    request: *const CRequest,
    error: *mut c_char,
    error_size: usize,
) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(|| match unsafe { request.as_ref() } {
        None => Err((Code::BadRequest, "no request".to_string())),
        Some(request) => call(request),
    }));
    let (code, message) = match outcome {
        Ok(Ok(())) => (Code::Ok, String::new()),
        Ok(Err(failure)) => failure,
        Err(_) => (Code::Internal, "the HTTP library panicked".to_string()),
    };
    write_error(&message, error, error_size);
    code as i32
}
