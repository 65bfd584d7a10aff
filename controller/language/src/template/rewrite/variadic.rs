//! Macros that take more arguments than they declare.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::template::mutable;

type Engine = minijinja::Value;

/// The filter that wraps such a macro.
pub(super) const FILTER: &str = "__variadic";

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(FILTER, |inner: &Engine| {
        let parameters: Vec<String> = inner
            .get_attr("arguments")
            .and_then(|names| Ok(names.try_iter()?.map(|name| name.to_string()).collect()))
            .unwrap_or_default();
        let has = |name: &str| parameters.iter().any(|known| known == name);
        let (varargs, kwargs) = (has("varargs"), has("kwargs"));
        let named = parameters.iter().filter(|name| !["varargs", "kwargs"].contains(&name.as_str())).cloned();
        Engine::from_object(Variadic { inner: inner.clone(), named: named.collect(), varargs, kwargs })
    });
}

/// A macro that takes more arguments than it declares.
struct Variadic {
    inner: Engine,
    named: Vec<String>,
    varargs: bool,
    kwargs: bool,
}

impl fmt::Debug for Variadic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Object for Variadic {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        Some(match key.as_str()? {
            "arguments" => Engine::from(self.named.clone()),
            "catch_varargs" => Engine::from(self.varargs),
            "catch_kwargs" => Engine::from(self.kwargs),
            other => self.inner.get_attr(other).ok()?,
        })
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Engine]) -> Result<Engine, Error> {
        let (given, named) = match args.split_last() {
            Some((last, given)) if last.is_kwargs() => (given, Some(Kwargs::try_from(last.clone())?)),
            _ => (args, None),
        };
        let (own, more) = given.split_at(given.len().min(self.named.len()));
        if !more.is_empty() && !self.varargs {
            let message = format!("the macro takes at most {} arguments", self.named.len());
            return Err(Error::new(ErrorKind::TooManyArguments, message));
        }
        let has_caller = self.inner.get_attr("caller").is_ok_and(|caller| caller.is_true());
        let (mut passed, mut others) = (Vec::new(), Vec::new());
        for name in named.iter().flat_map(Kwargs::args) {
            let value = named.as_ref().map_or(Ok(Engine::UNDEFINED), |named| named.get::<Engine>(name))?;
            let is_own = self.named.iter().any(|known| known == name) || name == "caller" && has_caller;
            match is_own {
                true => passed.push((name.to_owned(), value)),
                false if self.kwargs => others.push((name.to_owned(), value)),
                false => {
                    let message = format!("unknown keyword argument `{name}`");
                    return Err(Error::new(ErrorKind::TooManyArguments, message));
                }
            }
        }
        if self.varargs {
            passed.push(("varargs".to_owned(), Engine::from(more.to_vec())));
        }
        if self.kwargs {
            passed.push(("kwargs".to_owned(), mutable::mapping(others)));
        }
        let mut all = own.to_vec();
        all.push(Engine::from(passed.into_iter().collect::<Kwargs>()));
        self.inner.call(state, &all)
    }
}
