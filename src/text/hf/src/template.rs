//! Chat templates under bounds: what jinja/ parses and renders, on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::{self, Bounds};
use crate::jinja::{self, Error, Kind, PartsUse, Template};
use crate::{Code, Failure};

/// The largest published templates are about 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
pub const MAX_FUEL: u64 = 2_000_000;
/// Messages are cut here so that an error stays one readable line.
const MAX_MESSAGE_BYTES: usize = 2000;
/// The densest source of MAX_SOURCE_BYTES compiles within it.
const COMPILE_BOUNDS: Bounds =
    Bounds { memory_bytes: 128 << 20, timeout: Duration::from_millis(900) };

/// The limits of one rendering, and the time that it sees.
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
    template: Arc<Template>,
}

impl ChatTemplate {
    pub fn new(source: &str) -> Result<ChatTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::invalid(format!(
                "the template has {} bytes, more than {MAX_SOURCE_BYTES}",
                source.len()
            )));
        }
        jinja::prepare();
        let source = source.to_owned();
        let template = budget::run(&COMPILE_BOUNDS, move || {
            Template::new(&source).map_err(|error| failure_of(&error))
        })?;
        Ok(ChatTemplate { template: Arc::new(template) })
    }

    /// Whether the template reads the content of a message as parts.
    pub fn parts_use(&self) -> PartsUse {
        self.template.parts_use
    }

    /// Whether the template reads a variable of that name.
    pub fn reads(&self, variable: &str) -> bool {
        self.template.reads(variable)
    }

    /// The text that the template makes of a JSON object of variables.
    pub fn render(&self, variables_json: &str, limits: &RenderLimits) -> Result<String, Failure> {
        if !(1..=MAX_FUEL).contains(&limits.fuel) {
            return Err(Failure::invalid(format!(
                "fuel {} is outside [1, {MAX_FUEL}]",
                limits.fuel
            )));
        }
        let (template, limits) = (Arc::clone(&self.template), *limits);
        let variables_json = variables_json.to_owned();
        budget::run(&limits.bounds, move || render_here(&template, variables_json, &limits))
    }
}

fn render_here(
    template: &Template,
    variables_json: String,
    limits: &RenderLimits,
) -> Result<String, Failure> {
    template
        .render(&variables_json, limits.fuel, limits.now_unix_s, limits.max_output_bytes)
        .map_err(|error| failure_of(&error))
}

fn failure_of(error: &Error) -> Failure {
    let code = match error.kind {
        Kind::Raised => Code::Raised,
        Kind::Limit => Code::Limit,
        Kind::Syntax | Kind::Undefined | Kind::Value => Code::InvalidArgument,
    };
    let mut message = error.message.clone();
    if message.len() > MAX_MESSAGE_BYTES {
        let cut = (0..=MAX_MESSAGE_BYTES).rev().find(|i| message.is_char_boundary(*i));
        message.truncate(cut.unwrap_or(0));
        message.push_str("...");
    }
    if error.line > 0 {
        message.push_str(&format!(" (line {} of the template)", error.line));
    }
    Failure { code, message }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
