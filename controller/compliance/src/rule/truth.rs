//! What may be true of a condition.

/// The outcomes that a condition may have, given what is known.
///
/// A condition holds, does not hold, or, where an operand is null, does neither. An operand that is unknown leaves
/// several of these open, so that a condition is the set of outcomes that are possible. `and`, `or` and `not` are
/// Kleene's, with "neither" in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth(u8);

const FALSE: u8 = 1;
const NEITHER: u8 = 2;
const TRUE: u8 = 4;

impl Truth {
    pub const TRUE: Self = Self(TRUE);
    pub const FALSE: Self = Self(FALSE);
    /// An operand is null.
    pub const NEITHER: Self = Self(NEITHER);
    /// An operand is unknown: it may turn out to be anything, also null.
    pub const UNKNOWN: Self = Self(TRUE | FALSE | NEITHER);
    /// Whether something unknown is null.
    pub const EITHER: Self = Self(TRUE | FALSE);

    pub const fn of(holds: bool) -> Self {
        if holds { Self::TRUE } else { Self::FALSE }
    }

    /// Whether it holds, whatever the unknown operands are.
    pub const fn holds(self) -> bool {
        self.0 == TRUE
    }

    /// Whether it may hold, but need not.
    pub const fn may_hold(self) -> bool {
        self.0 & TRUE != 0 && self.0 != TRUE
    }

    /// Whether it can hold for no value of anything unknown, because an operand is null.
    pub const fn is_neither(self) -> bool {
        self.0 == NEITHER
    }

    #[must_use]
    pub const fn negated(self) -> Self {
        let swapped = ((self.0 & TRUE) >> 2) | ((self.0 & FALSE) << 2);
        Self(swapped | (self.0 & NEITHER))
    }

    /// The least of each pair of outcomes.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        let mut out = 0;
        if a & FALSE != 0 || b & FALSE != 0 {
            out |= FALSE;
        }
        if (a & NEITHER != 0 && b & (NEITHER | TRUE) != 0) || (b & NEITHER != 0 && a & (NEITHER | TRUE) != 0)
        {
            out |= NEITHER;
        }
        if a & b & TRUE != 0 {
            out |= TRUE;
        }
        Self(out)
    }

    /// The greatest of each pair of outcomes.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        self.negated().and(other.negated()).negated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Truth; 5] = [Truth::TRUE, Truth::FALSE, Truth::NEITHER, Truth::UNKNOWN, Truth::EITHER];

    #[test]
    fn conditions_combine_outcome_by_outcome() {
        let outcomes =
            |truth: Truth| [FALSE, NEITHER, TRUE].into_iter().filter(move |bit| truth.0 & bit != 0);
        for a in ALL {
            for b in ALL {
                let (mut and, mut or) = (0, 0);
                for x in outcomes(a) {
                    for y in outcomes(b) {
                        and |= x.min(y);
                        or |= x.max(y);
                    }
                }
                assert_eq!((a.and(b), a.or(b)), (Truth(and), Truth(or)), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn only_what_is_certain_holds() {
        assert!(Truth::TRUE.holds() && !Truth::TRUE.may_hold());
        for truth in [Truth::UNKNOWN, Truth::EITHER] {
            assert!(!truth.holds() && truth.may_hold() && truth.negated().may_hold());
        }
        assert!(!Truth::NEITHER.negated().holds() && !Truth::NEITHER.may_hold());
        // A null operand decides, as nothing unknown can make the whole hold.
        assert!(!Truth::NEITHER.and(Truth::UNKNOWN).may_hold());
        assert!(Truth::NEITHER.and(Truth::UNKNOWN).negated().may_hold());
    }
}
