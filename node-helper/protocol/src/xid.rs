//! Which error codes of the driver (Xid) concern the node, and which only a program on it.
//!
//! Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "immediate action" column), as of 2025-10.
//! `RESTART_APP` is a program's error; `IGNORE` is information. A code that the catalogue leaves open counts against
//! the node: a node held back wrongly costs an inspection, a node given back wrongly costs jobs.

/// What a code asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// An error of a program, or information.
    Nothing,
    Reset,
    Reboot,
    /// What the driver's recovery action asks for, because the code alone does not tell.
    Driver,
    /// An error of hardware or software, or a code that is not in this table.
    Investigate,
}

impl Asks {
    /// What a person does about it. What ends work has the drain before it: a code is shown of nodes in service too.
    pub const fn next_step(self) -> &'static str {
        match self {
            Self::Nothing => "nothing is to be done",
            Self::Reset => "with the node drained, reset the GPU",
            Self::Reboot => {
                "with the node drained, reboot it, and power it off and on if the GPU does not come back"
            }
            Self::Driver => "`nvidia-smi -q` tells the recovery action",
            Self::Investigate => "look the code up in NVIDIA's Xid catalogue",
        }
    }
}

/// Returns what a code asks for.
pub const fn asks(code: u32) -> Asks {
    match code {
        // RESTART_APP.
        8
        | 11
        | 13
        | 25
        | 31
        | 32
        | 39..=41
        | 60
        | 68..=72
        | 75..=77
        | 80
        | 82..=86
        | 88
        | 89
        | 94
        | 96..=105
        | 126..=135
        | 139 => Asks::Nothing,
        // IGNORE. 45 follows another Xid; 63 is a remapped row, which the ECC check reads; 171 and 172 only tell
        // whether a 48 was in DRAM or SRAM; 162 to 165 concern circuits for power smoothing; 78 is the software's.
        14
        | 37
        | 38
        | 43..=45
        | 63
        | 66
        | 67
        | 78
        | 92
        | 93
        | 106
        | 107
        | 108
        | 121
        | 137
        | 141
        | 152
        | 153
        | 157
        | 160..=165
        | 171
        | 172 => Asks::Nothing,
        // 48 is contained from Ampere on, half of the meanings of 144 to 150 are information, and 154 is the recovery
        // action itself.
        48 | 144..=150 | 154 => Asks::Driver,
        // RESET_GPU, and 74 (NVLink), whose workflow begins with it.
        46 | 62 | 64 | 74 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156 | 158 => Asks::Reset,
        // RESTART_BM and RESTART_VM.
        79 | 151 => Asks::Reboot,
        _ => Asks::Investigate,
    }
}

/// What the driver's own words say of an error, beside its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Fatal,
    Nonfatal,
    /// Another error caused it: `caused by previous Xid 149`.
    Follows,
    Nothing,
}

/// Reads these words from a line of the log with this code. They come before any table: what follows from another error, or is
/// an error of NVLink that is not fatal, asks for nothing by itself; one that is fatal counts whatever else the driver asks for.
/// In other lines the words are no verdict: they may be part of a program's name.
///
/// Source: lines of codes 144 to 150 in NVIDIA's open kernel modules 580.
pub fn said(code: u32, text: &str) -> Said {
    if text.contains("caused by previous Xid") {
        return Said::Follows;
    }
    if !is_nvlink(code) {
        return Said::Nothing;
    }
    let is = |word: &str| word.eq_ignore_ascii_case("nonfatal") || word.eq_ignore_ascii_case("non-fatal");
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    match words.find(|word| is(word) || word.eq_ignore_ascii_case("fatal")) {
        Some(word) if is(word) => Said::Nonfatal,
        Some(_) => Said::Fatal,
        None => Said::Nothing,
    }
}

/// Whether it is a code of NVLink whose meaning the code alone does not tell.
pub const fn is_nvlink(code: u32) -> bool {
    matches!(code, 144..=150)
}

/// Returns a short name, for codes where it helps an operator.
pub const fn name(code: u32) -> &'static str {
    match code {
        46 => "GPU stopped processing",
        48 => "double-bit ECC error",
        54 => "auxiliary power is not connected",
        62 => "internal micro-controller halt",
        64 => "row remapping failed",
        74 => "NVLink error",
        79 => "GPU has fallen off the bus",
        95 => "uncontained memory error",
        109 => "context switch timed out",
        110 => "security fault",
        119 | 120 => "GSP error",
        136 => "NVLink training failed",
        140 => "unrecovered ECC error",
        143 => "GPU initialisation failed",
        144..=150 => "NVLink error",
        154 => "the GPU asks for a recovery",
        _ => "",
    }
}
