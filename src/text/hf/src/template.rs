//! Chat templates: Jinja as Hugging Face renders it (trim_blocks, lstrip_blocks, Python methods,
//! raise_exception, strftime_now, tojson), under bounds.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::budget::{self, Bounds};
use crate::{json, strftime, Code, Failure};

/// The largest published templates are about 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// A template frame (macro call, loop recursion) costs one; includes and the like cost more.
const MAX_RECURSION: usize = 200;
/// Bounds the nesting of values; see budget::STACK_BYTES.
pub const MAX_FUEL: u64 = 2_000_000;
/// Messages are cut here so that an error stays one readable line.
const MAX_MESSAGE_BYTES: usize = 2000;
/// The densest source of MAX_SOURCE_BYTES compiles within it. What computes constants beyond it is
/// refused, and the thread that is then left behind holds no more.
const COMPILE_BOUNDS: Bounds =
    Bounds { memory_bytes: 64 << 20, timeout: Duration::from_millis(900) };
const NAME: &str = "chat_template";

/// What one rendering may spend and see.
#[derive(Clone, Copy, Debug)]
pub struct RenderLimits {
    pub fuel: u64,
    pub max_output_bytes: u64,
    pub bounds: Bounds,
    pub now_unix_s: Option<i64>,
}

/// A compiled template; immutable.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Arc<Environment<'static>>,
}

impl ChatTemplate {
    pub fn new(source: &str) -> Result<ChatTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::invalid(format!(
                "the template has {} bytes, more than {MAX_SOURCE_BYTES}",
                source.len()
            )));
        }
        let source = plain_generation_blocks(source);
        let env = budget::run(&COMPILE_BOUNDS, move || compile(source))?;
        Ok(ChatTemplate { env: Arc::new(env) })
    }

    /// The text that the template makes of a JSON object of variables.
    pub fn render(&self, variables_json: &str, limits: &RenderLimits) -> Result<String, Failure> {
        if !(1..=MAX_FUEL).contains(&limits.fuel) {
            return Err(Failure::invalid(format!(
                "fuel {} is outside [1, {MAX_FUEL}]",
                limits.fuel
            )));
        }
        let (env, limits) = (Arc::clone(&self.env), *limits);
        let variables_json = variables_json.to_owned();
        budget::run(&limits.bounds, move || render_here(&env, &variables_json, &limits))
    }
}

fn compile(source: String) -> Result<Environment<'static>, Failure> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_recursion_limit(MAX_RECURSION);
    env.set_unknown_method_callback(python_method);
    env.add_filter("tojson", json::tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_template_owned(NAME, source).map_err(|e| failure_of(&e, Code::InvalidArgument))?;
    Ok(env)
}

fn render_here(
    env: &Environment<'static>,
    variables_json: &str,
    limits: &RenderLimits,
) -> Result<String, Failure> {
    let variables: serde_json::Value = serde_json::from_str(variables_json)
        .map_err(|e| Failure::invalid(format!("the template's variables: {e}")))?;
    if !variables.is_object() {
        return Err(Failure::invalid("the template's variables are not a JSON object"));
    }
    let mut env = env.clone();
    env.set_fuel(Some(limits.fuel));
    if let Some(now) = limits.now_unix_s {
        env.add_function("strftime_now", move |format: &str| strftime::strftime(format, now));
    }
    let template = env.get_template(NAME).map_err(|e| failure_of(&e, Code::Internal))?;
    let mut out = LimitedWriter { text: Vec::new(), limit: limits.max_output_bytes, full: false };
    let rendered = template.render_captured_to(Value::from_serialize(&variables), &mut out);
    if out.full {
        return Err(Failure::limit(format!(
            "wrote more than the allowed {} bytes",
            limits.max_output_bytes
        )));
    }
    rendered.map_err(|e| failure_of(&e, Code::InvalidArgument))?;
    String::from_utf8(out.text).map_err(|_| Failure::new(Code::Internal, "wrote invalid UTF-8"))
}

/// Collects the output and refuses what goes past the limit.
struct LimitedWriter {
    text: Vec<u8>,
    limit: u64,
    full: bool,
}

impl io::Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() as u64 + bytes.len() as u64 > self.limit {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template said through raise_exception; travels as an error's source.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

fn python_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if method == "count" && value.kind() == ValueKind::String {
        // pycompat never returns from "text".count("").
        let (what,): (&str,) = from_args(args)?;
        let text = value.as_str().unwrap_or_default();
        let count =
            if what.is_empty() { text.chars().count() + 1 } else { text.matches(what).count() };
        return Ok(Value::from(count));
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// `{% generation %}` marks assistant text for training and prints its body; minijinja does not
/// know the tag. An `if true` keeps the whitespace rules of a block.
fn plain_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let body_end = tag.find("%}").unwrap_or(tag.len());
        let body = &tag[2..body_end.max(2)];
        let word = body.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replaced = match word {
            "generation" => body.replacen("generation", " if true ", 1),
            "endgeneration" => body.replacen("endgeneration", " endif ", 1),
            _ => {
                out.push_str("{%");
                rest = &tag[2..];
                continue;
            }
        };
        out.push_str("{%");
        out.push_str(&replaced);
        rest = &tag[body_end..];
    }
    out.push_str(rest);
    out
}

fn failure_of(error: &Error, default: Code) -> Failure {
    let mut code = default;
    let mut message = error.to_string();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            (code, message) = (Code::Raised, raised.0.clone());
            break;
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            if inner.kind() == ErrorKind::OutOfFuel {
                (code, message) = (Code::Limit, "ran more instructions than allowed".to_string());
            } else if inner.detail() == Some("recursion limit exceeded") {
                (code, message) = (Code::Limit, format!("recursed deeper than {MAX_RECURSION}"));
            }
        }
        next = current.source();
    }
    if message.len() > MAX_MESSAGE_BYTES {
        let cut = (0..=MAX_MESSAGE_BYTES).rev().find(|i| message.is_char_boundary(*i));
        message.truncate(cut.unwrap_or(0));
        message.push_str("...");
    }
    Failure { code, message }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
