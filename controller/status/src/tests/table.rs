//! The table at several widths, and what no text of a node can do to it.

use gpufleet_language::visible::is_hidden;
use gpufleet_protocol::signal::Signal;
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr as _;

use super::{fleet, held, node, read};
use crate::{
    column::{Column, Key},
    document,
    gpu_columns::GPU_COLUMNS,
    line::Line,
    node_columns::{NODE_COLUMNS, NodeRow},
    row::{Heard, NodeReading, Row, rows},
    table::{Table, notes, padded},
};

fn table<R: Line>(readings: &[NodeReading], wide: bool) -> Table {
    let lines: Vec<R> = readings.iter().flat_map(|reading| R::of(&rows(reading))).collect();
    let columns = Column::usual(R::COLUMNS, &lines.iter().collect::<Vec<_>>(), wide);
    Table::new(&columns, lines)
}

fn text<R: Line>(width: usize) -> String {
    table::<R>(&fleet(), false).text(width, |_, text| text.to_owned())
}

#[test]
fn eighty_columns_keep_what_matters() {
    insta::assert_snapshot!(text::<Row>(80), @r"
    NODE    GPU  USE%  MEM GiB  TEMP  POWER W  THROTTLE    HELD BY         STATE
    gpu001    0     0   0.0/80    34   72/700  -           -               free
    gpu001    1    97  71.2/80    34  612/700  power-cap   job 1812 alic…  busy
    gpu001    2    99  71.2/80    34  612/700  hw-therma…  job 1812 alic…  busy
    gpu001    3     -        -     -        -  -           -               lost
    gpu002    0     1  71.2/80    34  123/700  -           job 1812 alic…  idle-held
    gpu002    1    31  71.2/80    34  273/700  -           job 1812 alic…  starved
    gpu003    0     -   0.0/80    34   72/700  -           bob serve x2    part-free
    gpu003    1     -   0.0/80    34   72/700  -           bob serve x2    busy
    gpu004    0     0   0.0/80    34   72/700  -           MPS daemon      free
    gpu005    -     ?        ?     ?        ?  ?           connecting to…  unknown
    ");
}

#[test]
fn a_hundred_and_twenty_columns_have_room_for_more() {
    insta::assert_snapshot!(text::<Row>(120), @r"
    NODE    GPU  MODEL           MIG          USE%  MEM GiB  TEMP  POWER W  ECC  THROTTLE         HELD BY          STATE
    gpu001    0  H100 80GB HBM3  -               0   0.0/80    34   72/700    0  -                -                free
    gpu001    1  H100 80GB HBM3  -              97  71.2/80    34  612/700    0  power-cap        job 1812 alice…  busy
    gpu001    2  H100 80GB HBM3  -              99  71.2/80    34  612/700    2  hw-thermal,hw-…  job 1812 alice…  busy
    gpu001    3  -               -               -        -     -        -    -  -                -                lost
    gpu002    0  H100 80GB HBM3  -               1  71.2/80    34  123/700    0  -                job 1812 alice…  idle-held
    gpu002    1  H100 80GB HBM3  -              31  71.2/80    34  273/700    0  -                job 1812 alice…  starved
    gpu003    0  H100 80GB HBM3  5/7 1g.10gb     -   0.0/80    34   72/700    0  -                bob serve x2     part-free
    gpu003    1  H100 80GB HBM3  0/2 3g.40gb     -   0.0/80    34   72/700    0  -                bob serve x2     busy
    gpu004    0  H100 80GB HBM3  -               0   0.0/80    34   72/700    0  -                MPS daemon       free
    gpu005    -  ?               ?               ?        ?     ?        ?    ?  ?                connecting too…  unknown
    ");
}

#[test]
fn two_hundred_columns_show_everything() {
    insta::assert_snapshot!(text::<Row>(200), @r"
    NODE    GPU  MODEL           MIG          USE%  MEM GiB  TEMP  POWER W  ECC  THROTTLE                        HELD BY                           STATE
    gpu001    0  H100 80GB HBM3  -               0   0.0/80    34   72/700    0  -                               -                                 free
    gpu001    1  H100 80GB HBM3  -              97  71.2/80    34  612/700    0  power-cap                       job 1812 alice train.py           busy
    gpu001    2  H100 80GB HBM3  -              99  71.2/80    34  612/700    2  hw-thermal,hw-slowdown,thermal  job 1812 alice train.py           busy
    gpu001    3  -               -               -        -     -        -    -  -                               -                                 lost
    gpu002    0  H100 80GB HBM3  -               1  71.2/80    34  123/700    0  -                               job 1812 alice train.py           idle-held
    gpu002    1  H100 80GB HBM3  -              31  71.2/80    34  273/700    0  -                               job 1812 alice train.py           starved
    gpu003    0  H100 80GB HBM3  5/7 1g.10gb     -   0.0/80    34   72/700    0  -                               bob serve x2                      part-free
    gpu003    1  H100 80GB HBM3  0/2 3g.40gb     -   0.0/80    34   72/700    0  -                               bob serve x2                      busy
    gpu004    0  H100 80GB HBM3  -               0   0.0/80    34   72/700    0  -                               MPS daemon                        free
    gpu005    -  ?               ?               ?        ?     ?        ?    ?  ?                               connecting took longer than 15 s  unknown
    ");
}

#[test]
fn nodes_have_a_line_each() {
    insta::assert_snapshot!(text::<NodeRow>(120), @r"
    NODE    GPUS  MODEL           HELD  FREE           USE%  MEM GiB  POWER W  MPS  DRIVER      WORST
    gpu001     4  H100 80GB HBM3     2  1 whole          65  142/239     1296  -    580.159.04  lost
    gpu002     2  H100 80GB HBM3     2  -                16  142/159      396  -    580.159.04  idle-held
    gpu003     2  H100 80GB HBM3     2  5 MIG 1g.10gb     -    0/159      143  -    580.159.04  busy
    gpu004     1  H100 80GB HBM3     0  1 MPS             0     0/80       72  yes  580.159.04  free
    gpu005     ?  -                  ?  ?                 ?        ?        ?  -    ?           unknown
    ");
}

#[test]
fn what_needs_words_stands_below() {
    let all: Vec<Row> = fleet().iter().flat_map(rows).collect();
    insta::assert_snapshot!(notes(&all).join("\n"), @r"
    unknown: gpu005: connecting took longer than 15 s
    lost: gpu001 GPU 3: the GPU has fallen off the bus or is not accessible
    ");
}

#[test]
fn columns_are_chosen_by_name() {
    let chosen = Column::listed(GPU_COLUMNS, "state, NODE,gpu").unwrap();
    assert_eq!(chosen.iter().map(|column| column.name).collect::<Vec<_>>(), ["state", "node", "gpu"]);
    assert_eq!(
        Column::listed(GPU_COLUMNS, "node,colour").err().unwrap().to_string(),
        "there is no column `colour`"
    );
    for all in [names(GPU_COLUMNS), names(NODE_COLUMNS)] {
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }
}

fn names<R>(all: &'static [Column<R>]) -> Vec<&'static str> {
    all.iter().map(|column| column.name).collect()
}

#[test]
fn numbers_sort_from_the_largest_and_names_as_people_count() {
    let sorted = |texts: [&str; 4]| {
        let mut keys = texts.map(|text| Key::Text(text.to_owned()));
        keys.sort_by(|one, other| one.order(other, false));
        keys.map(|key| if let Key::Text(text) = key { text } else { String::new() })
    };
    assert_eq!(sorted(["gpu10", "gpu2", "gpu02", "a"]), ["a", "gpu2", "gpu02", "gpu10"]);
    let mut keys = [Key::Nothing, Key::Number(1.0), Key::Number(9.0)];
    keys.sort_by(|one, other| one.order(other, false));
    assert_eq!(keys, [Key::Number(9.0), Key::Number(1.0), Key::Nothing]);
    keys.sort_by(|one, other| one.order(other, true));
    assert_eq!(keys, [Key::Number(1.0), Key::Number(9.0), Key::Nothing]);
}

#[test]
fn the_document_has_every_gpu_with_its_state() {
    let document = document(&fleet());
    let state = |node: usize, gpu: usize| document["nodes"][node]["gpus"][gpu]["state"].clone();
    assert_eq!((state(0, 0), state(0, 3), state(1, 0)), ("free".into(), "lost".into(), "idle-held".into()));
    assert_eq!(document["nodes"][4]["error"], "connecting took longer than 15 s");
    assert_eq!(document["free"], serde_json::json!({"whole": 1, "mig": {"1g.10gb": 5}, "mps": 1}));
    assert_eq!(document["nodes"][0]["gpus"][1]["holders"][0]["user"], "alice");
}

/// Text that tries to leave its cell.
fn hostile() -> impl Strategy<Value = String> {
    let parts = proptest::sample::select(vec![
        "\n",
        "\r",
        "\u{1b}[2J",
        "\u{1b}]0;x\u{7}",
        "\u{202e}",
        "\u{200b}",
        "\u{9b}2K",
        "\t",
        "漢字",
        "👩‍👩‍👧",
        "e\u{301}",
        "a",
        " ",
    ]);
    prop_oneof![proptest::collection::vec(parts, 0..40).prop_map(|parts| parts.concat()), any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_breaks_a_line(text in hostile(), width in 0_usize..260, wide: bool) {
        let mut gpu = held(1, 970, 100);
        for name in ["name", "pci"] {
            gpu.signals.readings.insert(name.to_owned(), Signal::from(text.as_str()));
        }
        gpu.signals.readings.insert("temp_c".to_owned(), Signal::Unknown(text.clone()));
        gpu.signals.id.clone_from(&text);
        gpu.holders[0].command.clone_from(&text);
        gpu.holders[0].user.clone_from(&text);
        gpu.holders[0].unit = Some(text.clone());
        let mut sliced = super::sliced(0, &text, 3, 1);
        sliced.signals.readings.insert("mig_layout".to_owned(), Signal::Unknown(text.clone()));
        let readings = [
            read("gpu001", "rack1", vec![gpu, sliced]),
            node("gpu002", &text, Heard::Failed(text.clone())),
        ];
        for table in [table::<Row>(&readings, wide), table::<NodeRow>(&readings, wide)] {
            let lines: Vec<String> =
                table.lines(width).into_iter().map(|line| line.into_iter().map(|(piece, _)| piece).collect()).collect();
            let first = lines[0].width();
            for line in &lines {
                prop_assert_eq!(line.width(), first, "{:?}", line);
                prop_assert!(!line.contains(is_hidden), "{:?}", line);
            }
            if width >= 40 {
                prop_assert!(first <= width, "{} of {}", first, width);
            }
        }
        let all: Vec<Row> = readings.iter().flat_map(rows).collect();
        for note in notes(&all) {
            prop_assert!(!note.contains(is_hidden), "{:?}", note);
        }
    }

    #[test]
    fn padding_is_exact(text in hostile(), width in 0_usize..50, right: bool) {
        prop_assert_eq!(padded(&crate::row::line(&text), width, right).width(), width);
    }
}
