//! Grammars that an answer must follow (JSON schemas, regular expressions, choices, Lark), over the
//! crate llguidance. NOTES.md beside the crate says where schemas differ from the standard.

mod arrange;
mod bounds;
mod compile;
mod counts;
mod endless;
mod formats;
mod gbnf;
mod json_text;
mod lark;
mod masks;
mod memory;
mod names;
mod one_of;
mod parts;
mod places;
mod regex;
mod schema;
mod state;
mod structural;
mod vocabulary;

pub use compile::{compile, Kind, Limits};
pub use state::{Grammar, State};
pub use vocabulary::Vocabulary;

#[cfg(test)]
#[path = "closed_tests.rs"]
mod closed_tests;
#[cfg(test)]
#[path = "format_tests.rs"]
mod format_tests;
#[cfg(test)]
#[path = "gbnf_tests.rs"]
mod gbnf_tests;
#[cfg(test)]
#[path = "joined_tests.rs"]
mod joined_tests;
#[cfg(test)]
#[path = "mask_tests.rs"]
mod mask_tests;
#[cfg(test)]
#[path = "number_tests.rs"]
mod number_tests;
#[cfg(test)]
#[path = "regex_tests.rs"]
mod regex_tests;
#[cfg(test)]
#[path = "tag_tests.rs"]
mod tag_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
#[cfg(test)]
#[path = "work_tests.rs"]
mod work_tests;
