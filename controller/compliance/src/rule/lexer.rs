//! The text of a rule cut into tokens.

use gpufleet_language::visible::visible;

use super::RuleError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(f64),
    Text(String),
    /// A name, a keyword, or `declared.X` and `p.X`.
    Word(String),
    /// An operator, a parenthesis, a bracket, a comma, or the `=` of a named argument.
    Sign(&'static str),
}

/// A token and where it stands, in characters.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub token: Token,
    pub at: usize,
    pub length: usize,
}

/// Longer signs first, so that `<=` is not read as `<`.
const SIGNS: [&str; 17] =
    ["==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", ",", "|"];

pub(super) fn tokens(text: &str) -> Result<Vec<Placed>, RuleError> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        if c.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let (token, end) = match c {
            '"' => quoted(&chars, at)?,
            c if c.is_ascii_digit() => number(&chars, at)?,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = end_of(&chars, at, |c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
                (Token::Word(slice(&chars, at, end)), end)
            }
            _ => sign(&chars, at)?,
        };
        out.push(Placed { token, at, length: end - at });
        at = end;
    }
    Ok(out)
}

fn end_of(chars: &[char], from: usize, belongs: impl Fn(char) -> bool) -> usize {
    from + chars.iter().skip(from).take_while(|c| belongs(**c)).count()
}

fn slice(chars: &[char], from: usize, to: usize) -> String {
    chars.get(from..to).unwrap_or_default().iter().collect()
}

fn sign(chars: &[char], at: usize) -> Result<(Token, usize), RuleError> {
    let begins = |sign: &&&str| sign.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    match SIGNS.iter().find(begins) {
        Some(&"=") => Ok((Token::Sign("="), at + 1)),
        Some(&"|") | None => {
            let c = chars.get(at).copied().unwrap_or_default();
            let error = RuleError::new(
                format!("`{}` has no meaning here", visible(c.encode_utf8(&mut [0; 4]))),
                at,
                1,
            );
            Err(match c {
                '\'' => error.help("texts stand in double quotes"),
                '!' => error.help("write `not`"),
                '&' => error.help("write `and`"),
                '|' => error.help("write `or`"),
                _ => error,
            })
        }
        Some(sign) => Ok((Token::Sign(sign), at + sign.len())),
    }
}

/// Reads a text: `\"` and `\\` are escapes, any other backslash stands for itself, as regular expressions need it.
fn quoted(chars: &[char], start: usize) -> Result<(Token, usize), RuleError> {
    let mut text = String::new();
    let mut at = start + 1;
    while let Some(&c) = chars.get(at) {
        match (c, chars.get(at + 1)) {
            ('"', _) => return Ok((Token::Text(text), at + 1)),
            ('\\', Some(&next @ ('"' | '\\'))) => {
                text.push(next);
                at += 2;
            }
            (c, _) => {
                text.push(c);
                at += 1;
            }
        }
    }
    Err(RuleError::new("this text does not end", start, chars.len() - start).help("close it with `\"`"))
}

/// Reads a decimal number, with fraction and exponent, or a hexadecimal one (`0x40`).
fn number(chars: &[char], start: usize) -> Result<(Token, usize), RuleError> {
    let mut end = end_of(chars, start, |c| c.is_ascii_alphanumeric() || c == '.');
    // The sign of an exponent belongs to the number: `1e-12`.
    let text = slice(chars, start, end);
    if !text.starts_with("0x") && text.ends_with(['e', 'E']) && matches!(chars.get(end), Some('-' | '+')) {
        end = end_of(chars, end + 1, |c| c.is_ascii_digit());
    }
    let text = slice(chars, start, end);
    let read = match text.strip_prefix("0x") {
        #[expect(clippy::cast_precision_loss, reason = "masks have at most 32 bits")]
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(|mask| u64::from(mask) as f64),
        None => text.parse::<f64>().ok().filter(|number| number.is_finite()),
    };
    match read {
        Some(number) => Ok((Token::Number(number), end)),
        None => Err(RuleError::new(format!("`{text}` is not a number"), start, end - start)),
    }
}
