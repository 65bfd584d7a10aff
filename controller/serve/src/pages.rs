//! Templates. All text in them is escaped, and characters that are not seen are shown.

use gpufleet_language::visible::escape_visible;
use minijinja::{Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};
use serde::Serialize;

use crate::error::ServeError;

pub(crate) const STYLE: &str = include_str!("assets/serve.css");
pub(crate) const ICON: &str = include_str!("assets/icon.svg");
pub(crate) const SCRIPT: &str = include_str!("assets/serve.js");

/// All templates. The ending of their names makes minijinja escape what they show.
const TEMPLATES: &[(&str, &str)] = &[
    ("layout.html", include_str!("templates/layout.html.j2")),
    ("parts.html", include_str!("templates/parts.html.j2")),
    ("fleet.html", include_str!("templates/fleet.html.j2")),
    ("node.html", include_str!("templates/node.html.j2")),
    ("checks.html", include_str!("templates/checks.html.j2")),
    ("check.html", include_str!("templates/check.html.j2")),
    ("runs.html", include_str!("templates/runs.html.j2")),
    ("live.html", include_str!("templates/live.html.j2")),
    ("login.html", include_str!("templates/login.html.j2")),
    ("message.html", include_str!("templates/message.html.j2")),
];

/// Returns an address as it is where none of its characters means anything in HTML, which the escaping cannot know: it
/// takes six characters for each `/`, and a page has thousands.
fn link(address: &str) -> Value {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%?=#:".contains(&byte);
    match address.bytes().all(plain) {
        true => Value::from_safe_string(address.to_owned()),
        false => Value::from(address),
    }
}

/// The templates of all pages.
#[derive(Debug)]
pub(crate) struct Pages {
    environment: Environment<'static>,
}

impl Pages {
    /// `login` says whether readers log in, and so can log out.
    ///
    /// # Errors
    /// A template is wrong; a test renders all of them.
    pub(crate) fn new(login: bool) -> Result<Self, ServeError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_formatter(escape_visible);
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.add_filter("link", link);
        environment.add_global("login", login);
        for (name, text) in TEMPLATES {
            environment.add_template(name, text)?;
        }
        Ok(Self { environment })
    }

    /// Renders a page. `here` is the part of the site that it belongs to.
    ///
    /// # Errors
    /// Only for an error in a template.
    pub(crate) fn render(
        &self,
        name: &str,
        here: &str,
        view: &impl Serialize,
    ) -> Result<String, minijinja::Error> {
        let view = Value::from(Serde(view));
        self.environment.get_template(name)?.render(minijinja::context! { view, here })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_address_is_left_as_it_is() {
        assert!(link("/nodes/gpu%22001?by=rack#x").is_safe());
        for odd in ["/a\"b", "/a&b=1", "/<", "/a b", "/ä", "/'"] {
            assert!(!link(odd).is_safe(), "{odd}");
        }
    }
}
