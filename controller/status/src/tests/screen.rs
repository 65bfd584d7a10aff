//! The screen of `--watch`, on a terminal of the tests.

use std::time::{Duration, Instant};

use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Buffer,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    style::Modifier,
};

use super::{fleet, gpu, held, read, status};
use crate::{
    line::Line,
    node_columns::NodeRow,
    row::{Heard, Row},
    screen::{Do, Screen, Wanted},
};

struct Stage<R: Line> {
    screen: Screen<R>,
    terminal: Terminal<TestBackend>,
}

impl<R: Line> Stage<R> {
    fn new(nodes: impl IntoIterator<Item = &'static str>, width: u16, height: u16) -> Self {
        let wanted = Wanted {
            columns: None,
            wide: false,
            sort_by: None,
            reverse: false,
            interval: Duration::from_secs(5),
            color: false,
        };
        let nodes = nodes.into_iter().map(|node| (node.into(), ["rack1".to_owned()].into()));
        Self {
            screen: Screen::new(wanted, nodes),
            terminal: Terminal::new(TestBackend::new(width, height)).unwrap(),
        }
    }

    fn of_fleet(width: u16, height: u16) -> Self {
        let mut stage = Self::new(["gpu001", "gpu002", "gpu003", "gpu004", "gpu005"], width, height);
        for (at, reading) in fleet().into_iter().enumerate() {
            stage.screen.hear(at, Duration::from_secs(1), reading.heard);
        }
        stage
    }

    fn buffer(&mut self, at_s: u64) -> Buffer {
        self.terminal.draw(|frame| self.screen.draw(frame, Duration::from_secs(at_s))).unwrap().buffer.clone()
    }

    fn text(&mut self, at_s: u64) -> String {
        let buffer = self.buffer(at_s);
        let width = usize::from(buffer.area.width);
        let lines = buffer.content.chunks(width).map(|line| {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn keys(&mut self, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            assert_eq!(self.screen.key(KeyEvent::from(code)), Do::Stay, "{c}");
        }
    }
}

#[test]
fn the_screen_shows_all_that_was_heard() {
    insta::assert_snapshot!(Stage::<Row>::of_fleet(120, 18).text(3), @r"
    5 nodes (1 unknown), 9 GPUs: 1 lost, 1 idle-held, 1 starved, 3 busy, 1 part-free, 2 free; 38 % busy, 1907 W
    every 5 s, 1 of 5 nodes silent
    NODE    GPU  MODEL         MIG          USE%  MEM GiB  TEMP  POWER W  ECC  THROTTLE      HELD BY         STATE       AGE
    gpu001    0  H100 80GB H…  -               0   0.0/80    34   72/700    0  -             -               free         2s
    gpu001    1  H100 80GB H…  -              97  71.2/80    34  612/700    0  power-cap     job 1812 alic…  busy         2s
    gpu001    2  H100 80GB H…  -              99  71.2/80    34  612/700    2  hw-thermal,…  job 1812 alic…  busy         2s
    gpu001    3  -             -               -        -     -        -    -  -             -               lost         2s
    gpu002    0  H100 80GB H…  -               1  71.2/80    34  123/700    0  -             job 1812 alic…  idle-held    2s
    gpu002    1  H100 80GB H…  -              31  71.2/80    34  273/700    0  -             job 1812 alic…  starved      2s
    gpu003    0  H100 80GB H…  5/7 1g.10gb     -   0.0/80    34   72/700    0  -             bob serve x2    part-free    2s
    gpu003    1  H100 80GB H…  0/2 3g.40gb     -   0.0/80    34   72/700    0  -             bob serve x2    busy         2s
    gpu004    0  H100 80GB H…  -               0   0.0/80    34   72/700    0  -             MPS daemon      free         2s
    gpu005    -  ?             ?               ?        ?     ?        ?    ?  ?             connecting to…  unknown       -



    free: 1 whole, 5 MIG 1g.10gb, 1 MPS
    q leave  / filter  s sort  S other way  f free  b busy  Esc all  arrows, PgUp, PgDn scroll  ? help
    ");
}

#[test]
fn nodes_have_a_screen_too() {
    insta::assert_snapshot!(Stage::<NodeRow>::of_fleet(100, 10).text(3), @r"
    5 nodes (1 unknown), 9 GPUs: 1 lost, 1 idle-held, 1 starved, 3 busy, 1 part-free, 2 free; 38 % busy…
    every 5 s, 1 of 5 nodes silent
    NODE    GPUS  MODEL       HELD  FREE        USE%  MEM GiB  POWER W  MPS  DRIVER      WORST       AGE
    gpu001     4  H100 80GB…     2  1 whole       65  142/239     1296  -    580.159.04  lost         2s
    gpu002     2  H100 80GB…     2  -             16  142/159      396  -    580.159.04  idle-held    2s
    gpu003     2  H100 80GB…     2  5 MIG 1g.…     -    0/159      143  -    580.159.04  busy         2s
    gpu004     1  H100 80GB…     0  1 MPS          0     0/80       72  yes  580.159.04  free         2s
    gpu005     ?  -              ?  ?              ?        ?        ?  -    ?           unknown       -
    free: 1 whole, 5 MIG 1g.10gb, 1 MPS
    q leave  / filter  s sort  S other way  f free  b busy  Esc all  arrows, PgUp, PgDn scroll  ? help
    ");
}

#[test]
fn a_small_terminal_shows_lines_of_the_table() {
    insta::assert_snapshot!(Stage::<Row>::of_fleet(50, 5).text(3), @r"
    NODE    GPU  USE%  MEM GiB  STATE       AGE
    gpu001    0     0   0.0/80  free         2s
    gpu001    1    97  71.2/80  busy         2s
    gpu001    2    99  71.2/80  busy         2s
    gpu001    3     -        -  lost         2s
    ");
    for (width, height) in [(1, 1), (3, 2), (8, 3), (10, 40)] {
        Stage::<Row>::of_fleet(width, height).text(3);
    }
}

#[test]
fn keys_filter_and_sort() {
    let mut stage = Stage::<Row>::of_fleet(120, 18);
    let shown = |stage: &mut Stage<Row>| -> Vec<String> {
        let text = stage.text(3);
        let lines = text.lines().skip(3).filter(|line| line.starts_with("gpu0"));
        lines.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(":")).collect()
    };
    stage.keys("f");
    assert_eq!(shown(&mut stage), ["gpu001:0", "gpu003:0", "gpu004:0"]);
    stage.keys("b");
    assert_eq!(shown(&mut stage), ["gpu001:1", "gpu001:2", "gpu002:0", "gpu002:1", "gpu003:0", "gpu003:1"]);
    stage.keys("\u{1b}/alice STARVED\n");
    assert_eq!(shown(&mut stage), ["gpu002:1"]);
    assert!(stage.text(3).contains("only /alice STARVED, lines 1-1 of 1 (10)"), "{}", stage.text(3));
    stage.keys("\u{1b}b");
    // By node, gpu, model, mig, use.
    stage.text(3);
    stage.keys("sssss");
    assert!(stage.text(3).contains("sorted by use"), "{}", stage.text(3));
    assert_eq!(shown(&mut stage)[..3], ["gpu001:2", "gpu001:1", "gpu002:1"]);
    stage.keys("S");
    assert_eq!(shown(&mut stage)[..3], ["gpu002:0", "gpu002:1", "gpu001:1"]);
    stage.keys("?");
    assert!(stage.text(3).contains("sort by the next column"));
    stage.keys("x");
    let leaves =
        [KeyEvent::from(KeyCode::Char('q')), KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)];
    for key in leaves {
        assert_eq!(stage.screen.key(key), Do::Leave);
    }
}

#[test]
fn a_filter_takes_every_letter() {
    let mut stage = Stage::<Row>::of_fleet(80, 12);
    stage.keys("/q?sfb");
    assert!(stage.text(3).contains("/q?sfb_"));
    assert_eq!(stage.screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Do::Leave);
}

#[test]
fn a_silent_node_is_dimmed_and_counts_as_unknown() {
    let mut stage = Stage::<Row>::new(["gpu001", "gpu002"], 120, 10);
    let heard = || Heard::Status(Box::new(status(vec![gpu(0), held(1, 970, 100)])));
    stage.screen.hear(0, Duration::from_secs(1), heard());
    stage.screen.hear(1, Duration::from_secs(1), heard());
    assert!(stage.text(10).contains("free: 2 whole"));
    stage.screen.hear(1, Duration::from_secs(15), heard());
    let text = stage.text(20);
    insta::assert_snapshot!(text, @r"
    2 nodes, 4 GPUs: 2 unknown, 1 busy, 1 free; 48 % busy, 684 W
    every 5 s, 1 of 2 nodes silent
    NODE    GPU  MODEL           USE%  MEM GiB  TEMP  POWER W  ECC  THROTTLE   HELD BY                  STATE     AGE
    gpu001    0  H100 80GB HBM3     0   0.0/80    34   72/700    0  -          -                        unknown   19s
    gpu001    1  H100 80GB HBM3    97  71.2/80    34  612/700    0  power-cap  job 1812 alice train.py  unknown   19s
    gpu002    0  H100 80GB HBM3     0   0.0/80    34   72/700    0  -          -                        free       5s
    gpu002    1  H100 80GB HBM3    97  71.2/80    34  612/700    0  power-cap  job 1812 alice train.py  busy       5s

    free: 1 whole
    q leave  / filter  s sort  S other way  f free  b busy  Esc all  arrows, PgUp, PgDn scroll  ? help
    ");
    let buffer = stage.buffer(20);
    let dim = |y: u16| buffer[(0, y)].modifier.contains(Modifier::DIM);
    assert_eq!([dim(3), dim(4), dim(5), dim(6)], [true, true, false, false]);
    // It answers again.
    stage.screen.hear(0, Duration::from_secs(21), heard());
    assert!(stage.text(21).contains("free: 2 whole"));
    // Its link breaks: known at once.
    stage.screen.hear(0, Duration::from_secs(22), Heard::Failed("the connection ended".to_owned()));
    let text = stage.text(22);
    assert!(text.contains("free: 1 whole") && text.contains("1 of 2 nodes silent"), "{text}");
}

#[test]
fn gpus_that_a_driver_does_not_tell_of_any_more_stay_with_their_age() {
    let mut stage = Stage::<Row>::new(["gpu001"], 120, 10);
    let heard = |gpus| Heard::Status(Box::new(status(gpus)));
    stage.screen.hear(0, Duration::from_secs(1), heard(vec![gpu(0), gpu(1)]));
    let mut hung = status(Vec::new());
    hung.node = serde_json::from_str(r#"{"nvml_count": {"unknown": "NVML did not answer"}}"#).unwrap();
    stage.screen.hear(0, Duration::from_secs(6), Heard::Status(Box::new(hung)));
    let text = stage.text(8);
    assert!(text.contains("2 unknown") && text.contains("free: none") && text.contains("7s"), "{text}");
}

#[test]
fn scrolling_stays_inside() {
    let mut stage = Stage::<Row>::of_fleet(100, 9);
    let first = |stage: &mut Stage<Row>| stage.text(3).lines().nth(3).unwrap()[..10].to_owned();
    let at_top = first(&mut stage);
    stage.screen.key(KeyEvent::from(KeyCode::Up));
    assert_eq!(first(&mut stage), at_top);
    stage.screen.key(KeyEvent::from(KeyCode::End));
    assert_eq!(first(&mut stage), "gpu003    ");
    stage.screen.key(KeyEvent::from(KeyCode::PageDown));
    assert_eq!(first(&mut stage), "gpu003    ");
    stage.screen.key(KeyEvent::from(KeyCode::PageUp));
    stage.screen.key(KeyEvent::from(KeyCode::Home));
    assert_eq!(first(&mut stage), at_top);
}

/// A picture of 1,000 nodes with 8 GPUs each; `--nocapture` prints its times.
#[test]
fn a_large_fleet_is_drawn_fast() {
    // A screen that is drawn in less than 20 ms looks calm. Without optimisation, only that it stays usable.
    let bound = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 20 });
    let names: Vec<&'static str> = (0..1000).map(|n| &*format!("gpu{n:04}").leak()).collect();
    let mut stage = Stage::<Row>::new(names.iter().copied(), 200, 60);
    let gpus = || (0..8).map(|index| held(index, 900 + index * 10, 100)).collect();
    let begun = Instant::now();
    for at in 0..1000 {
        stage.screen.hear(at, Duration::from_secs(1), read("", "", gpus()).heard);
    }
    println!("hearing 1,000 nodes: {:?}", begun.elapsed());
    stage.keys("sssss");
    let begun = Instant::now();
    stage.buffer(2);
    println!("the first picture of 8,000 lines: {:?}", begun.elapsed());
    let begun = Instant::now();
    for _ in 0..50 {
        stage.screen.key(KeyEvent::from(KeyCode::Down));
        stage.buffer(2);
    }
    let after_a_key = begun.elapsed() / 50;
    println!("a picture after a key: {after_a_key:?}");
    let begun = Instant::now();
    for at in 0..50 {
        stage.screen.hear(at, Duration::from_secs(2), read("", "", gpus()).heard);
        stage.buffer(2);
    }
    let after_a_reading = begun.elapsed() / 50;
    println!("a picture after a reading: {after_a_reading:?}");
    assert!(after_a_key < bound && after_a_reading < bound, "{after_a_key:?}, {after_a_reading:?}");
}
