//! Parameters with a closed set of words, of which YAML may have converted `off` to a boolean.

/// Declares an enum of words; the first word of a variant is its name, the others are also accepted.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident: $word:literal $(| $other:literal)*),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant),*
        }

        impl $name {
            /// The accepted words.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Word;
                impl serde::de::Visitor<'_> for Word {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(f, "one of {}", $name::WORDS.join(", "))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        match text {
                            $($word $(| $other)* => Ok($name::$variant),)*
                            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                        }
                    }
                    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<$name, E> {
                        // YAML reads a bare `off` or `no` as a boolean.
                        let words: &[&str] = if value { &["on", "yes", "true", "enabled"] } else { &["off", "no", "false", "disabled"] };
                        for word in words {
                            if let Ok(found) = Word.visit_str::<E>(word) {
                                return Ok(found);
                            }
                        }
                        Err(E::invalid_value(serde::de::Unexpected::Bool(value), &self))
                    }
                }
                deserializer.deserialize_any(Word)
            }
        }
    };
}
pub(super) use words;
