//! Jinja as jinja2 3.1 renders it in transformers' environment (ImmutableSandboxedEnvironment with
//! trim_blocks, lstrip_blocks, loop controls and `generation` blocks), over Python's values.
//!
//! Source text goes through lexer, parser and check once, when a model is loaded; interp renders
//! the tree. Each step of a rendering and each 4 KiB or 4,096 items that it works on cost an
//! instruction (error::charge), whatever operator, slice, filter, method or look-up it is in.

mod ast;
mod attr;
mod call;
mod calls;
mod check;
mod error;
mod escape;
mod eval;
mod filters;
mod filters_seq;
mod filters_text;
mod interp;
mod json;
mod lexer;
mod looping;
mod numbers;
mod ops;
mod parse_expr;
mod parser;
mod percent;
mod repr;
mod scope;
mod sorting;
mod strformat;
mod strings;
mod strings_split;
mod tests;
mod unicode;
mod unicode_tables;
mod value;
mod wordwrap;

pub use check::PartsUse;
pub use error::{Error, Kind};
pub use unicode::prepare;

use std::collections::HashSet;

use error::Res;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: Vec<ast::Stmt>,
    names: HashSet<ast::Name>,
    pub parts_use: PartsUse,
}

impl Template {
    pub fn new(source: &str) -> Result<Template, Box<Error>> {
        let body = parser::parse(source)?;
        check::names(&body)?;
        let parts_use = check::parts_use(&body);
        let names = ast::names_read(&body);
        Ok(Template { body, names, parts_use })
    }

    /// Whether an expression of the template names the variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.names.contains(variable)
    }

    /// The text for the members of a JSON object as variables, in at most `fuel` instructions.
    pub fn render(
        &self,
        variables_json: &str,
        fuel: u64,
        now_unix_s: Option<i64>,
        max_output_bytes: u64,
    ) -> Res<String> {
        // Reading the variables is not the template's work.
        error::set_fuel(u64::MAX);
        let variables = json::parse(variables_json)?;
        if !matches!(variables, value::Value::Dict(_)) {
            return error::fail("the template's variables are not a JSON object");
        }
        error::set_fuel(fuel);
        interp::render(&self.body, &variables, now_unix_s, max_output_bytes)
    }
}
