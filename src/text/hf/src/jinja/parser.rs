//! Tokens to statements; parse_expr.rs has the expressions. The grammar is jinja2's, with the tags
//! of loop controls and transformers' `generation`.

use std::sync::Arc;

use super::ast::{
    reads, walk, CallArgs, Expr, ExprKind, ForLoop, MacroDef, Name, Stmt, StmtKind, Target,
};
use super::error::Res;
use super::lexer::{syntax, tokenize, Tok, Token};

/// Blocks and brackets may nest this deep. Python refuses more than 200 brackets.
const MAX_NESTING: u32 = 200;

pub struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: u32,
    num_loops: u32,
}

/// Tags that end a body.
type Ends = &'static [&'static str];

pub fn parse(source: &str) -> Res<Vec<Stmt>> {
    let mut parser = Parser { tokens: tokenize(source)?, at: 0, nesting: 0, num_loops: 0 };
    let body = parser.body(&[])?;
    Ok(body)
}

impl Parser {
    pub(super) fn tok(&self) -> &Tok {
        &self.tokens[self.at.min(self.tokens.len() - 1)].tok
    }

    pub(super) fn look(&self) -> &Tok {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].tok
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at.min(self.tokens.len() - 1)].line
    }

    pub(super) fn next(&mut self) {
        self.at += 1;
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.tok(), Tok::Op(have) if *have == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.tok(), Tok::Name(have) if &**have == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Res<()> {
        if self.skip_op(op) {
            return Ok(());
        }
        syntax(self.line(), format!("expected token '{op}', got {}", self.describe()))
    }

    pub(super) fn expect_name(&mut self) -> Res<Name> {
        if let Tok::Name(name) = self.tok() {
            let name = Arc::from(&**name);
            self.next();
            return Ok(name);
        }
        syntax(self.line(), format!("expected a name, got {}", self.describe()))
    }

    pub(super) fn describe(&self) -> String {
        match self.tok() {
            Tok::Data(_) => "template data".to_string(),
            Tok::BlockBegin => "the beginning of a statement block".to_string(),
            Tok::BlockEnd => "the end of the statement block".to_string(),
            Tok::VarBegin => "the beginning of a print statement".to_string(),
            Tok::VarEnd => "the end of the print statement".to_string(),
            Tok::Name(name) => format!("'{name}'"),
            Tok::Str(_) => "a string".to_string(),
            Tok::Int(value) => format!("'{value}'"),
            Tok::Float(value) => format!("'{value}'"),
            Tok::Op(op) => format!("'{op}'"),
            Tok::Eof => "the end of the template".to_string(),
        }
    }

    pub(super) fn enter(&mut self) -> Res<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return syntax(self.line(), format!("nested deeper than {MAX_NESTING} levels"));
        }
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.nesting -= 1;
    }

    fn expect_block_end(&mut self) -> Res<()> {
        if matches!(self.tok(), Tok::BlockEnd) {
            self.next();
            return Ok(());
        }
        syntax(
            self.line(),
            format!("expected token 'end of statement block', got {}", self.describe()),
        )
    }

    /// Statements up to a tag of `ends`, which becomes the current token; with no ends, up to the
    /// end of the template.
    fn body(&mut self, ends: Ends) -> Res<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.tok() {
                Tok::Data(text) => {
                    let text: Arc<str> = Arc::from(&**text);
                    self.next();
                    body.push(Stmt { kind: StmtKind::Data(text), line });
                }
                Tok::VarBegin => {
                    self.next();
                    let value = self.tuple(true, &[], false)?;
                    if !matches!(self.tok(), Tok::VarEnd) {
                        return syntax(
                            self.line(),
                            format!(
                                "expected token 'end of print statement', got {}",
                                self.describe()
                            ),
                        );
                    }
                    self.next();
                    body.push(Stmt { kind: StmtKind::Print(value), line });
                }
                Tok::BlockBegin => {
                    self.next();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.enter()?;
                    self.statement(&mut body)?;
                    self.leave();
                    self.expect_block_end()?;
                }
                _ if ends.is_empty() => return Ok(body),
                _ => {
                    return syntax(
                        line,
                        format!(
                            "unexpected end of template; looking for '{}'",
                            ends.join("' or '")
                        ),
                    )
                }
            }
        }
    }

    /// The body behind the rest of an opening tag, and its ending tag, which is taken.
    fn body_to(&mut self, ends: Ends) -> Res<(Vec<Stmt>, Name)> {
        self.skip_op(":");
        self.expect_block_end()?;
        let body = self.body(ends)?;
        let end = self.expect_name()?;
        Ok((body, end))
    }

    fn statement(&mut self, out: &mut Vec<Stmt>) -> Res<()> {
        let line = self.line();
        let Tok::Name(tag) = self.tok() else {
            return syntax(line, "tag name expected");
        };
        let tag = tag.to_string();
        self.next();
        let kind = match tag.as_str() {
            "if" => self.if_block()?,
            "for" => self.for_loop(line)?,
            "set" => self.set()?,
            "macro" => StmtKind::Macro(Arc::new(self.macro_def()?)),
            "call" => self.call_block(line)?,
            "filter" => {
                let filter = self.filters(None, true)?;
                StmtKind::FilterBlock(filter, self.body_to(&["endfilter"])?.0)
            }
            "with" => self.with_block()?,
            "block" => self.block()?,
            "generation" => StmtKind::Scope(self.body_to(&["endgeneration"])?.0),
            "print" => return self.print(line, out),
            "break" | "continue" if self.num_loops > 0 => {
                if tag == "break" {
                    StmtKind::Break
                } else {
                    StmtKind::Continue
                }
            }
            "break" | "continue" => return syntax(line, format!("'{tag}' outside of a loop")),
            "extends" | "include" | "import" | "from" => {
                return syntax(line, format!("'{tag}' needs other templates: there are none"))
            }
            "autoescape" => return syntax(line, "'autoescape' is not supported"),
            _ => return syntax(line, format!("Encountered unknown tag '{tag}'.")),
        };
        out.push(Stmt { kind, line });
        Ok(())
    }

    fn if_block(&mut self) -> Res<StmtKind> {
        let mut branches = Vec::new();
        let mut else_body = Vec::new();
        loop {
            let test = self.tuple(false, &[], false)?;
            let (body, end) = self.body_to(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match &*end {
                "elif" => continue,
                "else" => else_body = self.body_to(&["endif"])?.0,
                _ => {}
            }
            return Ok(StmtKind::If(branches, else_body));
        }
    }

    fn for_loop(&mut self, line: u32) -> Res<StmtKind> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return syntax(self.line(), format!("expected token 'in', got {}", self.describe()));
        }
        let iter = self.tuple(false, &["recursive"], false)?;
        let test = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let recursive = self.skip_name("recursive");
        self.num_loops += 1;
        let (body, end) = self.body_to(&["endfor", "else"])?;
        self.num_loops -= 1;
        let else_body = if &*end == "else" { self.body_to(&["endfor"])?.0 } else { Vec::new() };
        let body_reads_loop = test.is_some() && reads(&body, "loop");
        let node =
            ForLoop { target, iter, test, recursive, body, body_reads_loop, else_body, line };
        Ok(StmtKind::For(Arc::new(node)))
    }

    fn set(&mut self) -> Res<StmtKind> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[], false)?));
        }
        let filter = if self.is_op("|") { Some(self.filters(None, false)?) } else { None };
        Ok(StmtKind::SetBlock(target, filter, self.body_to(&["endset"])?.0))
    }

    fn with_block(&mut self) -> Res<StmtKind> {
        let mut pairs = Vec::new();
        while !matches!(self.tok(), Tok::BlockEnd) {
            if !pairs.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_op("=")?;
            pairs.push((target, self.expression(true)?));
        }
        Ok(StmtKind::With(pairs, self.body_to(&["endwith"])?.0))
    }

    fn block(&mut self) -> Res<StmtKind> {
        let name = self.expect_name()?;
        self.skip_name("scoped");
        self.skip_name("required");
        let (body, _) = self.body_to(&["endblock"])?;
        self.skip_name(&name);
        Ok(StmtKind::Scope(body))
    }

    fn print(&mut self, line: u32, out: &mut Vec<Stmt>) -> Res<()> {
        let begin = out.len();
        while !matches!(self.tok(), Tok::BlockEnd) {
            if out.len() > begin {
                self.expect_op(",")?;
            }
            let value = self.expression(true)?;
            out.push(Stmt { kind: StmtKind::Print(value), line });
        }
        Ok(())
    }

    fn signature(&mut self) -> Res<(Vec<Name>, Vec<Expr>)> {
        let (mut params, mut defaults) = (Vec::new(), Vec::new());
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            params.push(self.assignable_name()?);
            if self.skip_op("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return syntax(self.line(), "non-default argument follows default argument");
            }
        }
        self.expect_op(")")?;
        Ok((params, defaults))
    }

    fn macro_def(&mut self) -> Res<MacroDef> {
        let name = self.assignable_name()?;
        let (params, defaults) = self.signature()?;
        self.macro_body(Some(name), (params, defaults), "endmacro")
    }

    fn macro_body(
        &mut self,
        name: Option<Name>,
        (params, defaults): (Vec<Name>, Vec<Expr>),
        end: &'static str,
    ) -> Res<MacroDef> {
        let num_loops = std::mem::take(&mut self.num_loops);
        let (body, _) =
            self.body_to(if end == "endmacro" { &["endmacro"] } else { &["endcall"] })?;
        self.num_loops = num_loops;
        let mut used = [false; 3];
        walk(&body, &mut |_| {}, &mut |expr| {
            if let ExprKind::Name(name) = &expr.kind {
                for (i, special) in ["caller", "kwargs", "varargs"].iter().enumerate() {
                    used[i] |= &**name == *special;
                }
            }
        });
        let [uses_caller, uses_kwargs, uses_varargs] = used;
        Ok(MacroDef { name, params, defaults, body, uses_caller, uses_kwargs, uses_varargs })
    }

    fn call_block(&mut self, line: u32) -> Res<StmtKind> {
        let signature = if self.is_op("(") { self.signature()? } else { Default::default() };
        let call = self.expression(true)?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return syntax(line, "expected call");
        }
        let body = self.macro_body(None, signature, "endcall")?;
        Ok(StmtKind::CallBlock(call, Arc::new(body)))
    }

    fn assignable_name(&mut self) -> Res<Name> {
        let line = self.line();
        let name = self.expect_name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return syntax(line, format!("can't assign to '{name}'"));
        }
        Ok(name)
    }

    /// A name, an attribute of a namespace, or a tuple of targets.
    fn target(&mut self, ends: Ends, with_namespace: bool) -> Res<Target> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_tuple_end(ends) || self.is_op("=") {
                break;
            }
            items.push(self.single_target(with_namespace)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(only) = items.pop() {
                return Ok(only);
            }
            return syntax(self.line(), format!("expected a name, got {}", self.describe()));
        }
        Ok(Target::Tuple(items))
    }

    fn single_target(&mut self, with_namespace: bool) -> Res<Target> {
        if self.skip_op("(") {
            self.enter()?;
            let target = self.target(&[], with_namespace)?;
            self.leave();
            self.expect_op(")")?;
            return Ok(target);
        }
        if !matches!(self.tok(), Tok::Name(_)) {
            return syntax(self.line(), format!("can't assign to {}", self.describe()));
        }
        if with_namespace && matches!(self.look(), Tok::Op(".")) {
            let name = self.expect_name()?;
            self.next();
            return Ok(Target::Attr(name, self.expect_name()?));
        }
        Ok(Target::Name(self.assignable_name()?))
    }

    pub(super) fn is_tuple_end(&self, ends: Ends) -> bool {
        matches!(self.tok(), Tok::VarEnd | Tok::BlockEnd)
            || self.is_op(")")
            || ends.iter().any(|end| self.is_name(end))
    }

    /// `| name(args) | ...` behind `value`; `inline`: the first '|' is not written.
    pub(super) fn filters(&mut self, value: Option<Expr>, inline: bool) -> Res<Expr> {
        let mut value = value;
        let mut inline = inline;
        while inline || self.skip_op("|") {
            inline = false;
            let line = self.line();
            let name = self.dotted_name()?;
            let args = if self.is_op("(") { self.call_args()? } else { CallArgs::default() };
            let kind = ExprKind::Filter(value.map(Box::new), name, args);
            value = Some(self.node(kind, line)?);
        }
        match value {
            Some(value) => Ok(value),
            None => syntax(self.line(), "expected a filter"),
        }
    }

    pub(super) fn dotted_name(&mut self) -> Res<Name> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(Arc::from(name))
    }
}
