//! `mig` as a user types it: families, files of mig-parted with their mistakes, and what a configuration gives GPUs.

use gpufleet_tests::Home;
use serde_json::Value;

const FILE: &str = "version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  balanced:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2, 3]
      mig-enabled: true
      mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
";

#[test]
fn the_profiles_of_a_gpu_are_drawn() {
    let home = Home::new();
    let all = home.gpufleet(["mig", "show"]).run().expect(0);
    assert_eq!(all.stdout.lines().count(), 13, "{all}");
    let one = home.gpufleet(["mig", "show", "NVIDIA H200"]).run().expect(0);
    assert!(one.stdout.starts_with("h200-141gb (H200, H200 NVL, hopper)\n"), "{one}");
    assert!(one.stdout.contains("3g.71gb") && one.stdout.contains("at 0, 4"), "{one}");
    let json = home.gpufleet(["mig", "show", "a30", "--format", "json"]).run().expect(0);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["memory_slices"], 4);
    let unknown = home.gpufleet(["mig", "show", "h100-8gb"]).run().expect(1);
    assert!(unknown.stderr.contains("did you mean `h100-80gb`?"), "{unknown}");
}

#[test]
fn a_file_of_mig_parted_is_checked_before_any_node() {
    let home = Home::new();
    home.write("mig.yaml", FILE);
    let done = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(0);
    assert!(done.stdout.contains("1x 3g.40gb  fits a100-80gb, h100-80gb\n"), "{done}");
    let other = home.gpufleet(["mig", "check", "mig.yaml", "--gpu", "h200"]).run().expect(1);
    assert!(
        other.stderr.contains("it does not fit h200-141gb: there is no MIG profile `1g.10gb`"),
        "{other}"
    );
    assert!(other.stderr.contains("mig.yaml:9:7"), "{other}");
    home.write("mig.yaml", &FILE.replace("3g.40gb: 1", "3g.40gb: 2"));
    let full = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(1);
    assert!(full.stderr.contains("no GPU that gpufleet knows has room for"), "{full}");
    home.write("mig.yaml", &FILE.replace("[0, 1]", "[0, 1]\n      device-filter: H100"));
    let filter = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(1);
    assert!(filter.stderr.contains("`H100` is no device id"), "{filter}");
}

#[test]
fn a_plan_draws_what_each_gpu_gets() {
    let home = Home::new();
    home.write("mig.yaml", FILE);
    let plan = |more: &[&str]| {
        let words = ["mig", "plan", "mig.yaml", "--gpu", "h100-80gb"];
        home.gpufleet(words.iter().chain(more)).run()
    };
    let done = plan(&["--config", "balanced", "--gpus", "5"]).expect(0);
    assert_eq!(
        done.stdout,
        "balanced on 5x h100-80gb
  GPU 0,1               MIG off
  GPU 2,3               2x 1g.10gb + 1x 2g.20gb + 1x 3g.40gb
                        |       2g.20gb       | 1g.10gb  | 1g.10gb  |                  3g.40gb                  |
  GPU 4                 stays as it is: no spec is for it
Places are those of empty GPUs; a run keeps instances that can stay. Profiles: gpufleet mig show h100-80gb
"
    );
    let json: Value =
        serde_json::from_str(&plan(&["--config", "balanced", "--format", "json"]).expect(0).stdout)
            .expect("JSON");
    assert_eq!(json["gpus"][2]["instances"][3]["profile"], "3g.40gb");
    assert_eq!(json["gpus"][7]["mig"], Value::Null);
    let which = plan(&[]).expect(1);
    assert!(which.stderr.contains("choose one with --config: all-disabled, balanced"), "{which}");
    let typed = plan(&["--config", "balance"]).expect(1);
    assert!(typed.stderr.contains("did you mean `balanced`?"), "{typed}");
}

#[test]
fn boards_of_a_family_that_get_different_layouts_are_told_apart() {
    let home = Home::new();
    home.write(
        "mig.yaml",
        "version: v1
mig-configs:
  a:
    - {devices: all, device-filter: '0x233010DE', mig-enabled: true, mig-devices: {1c.3g.40gb: 3, 1g.10gb: 4}}
    - {devices: all, device-filter: '0x232410DE', mig-enabled: false}
",
    );
    let plan = |gpu: &str| home.gpufleet(["mig", "plan", "mig.yaml", "--gpu", gpu, "--gpus", "1"]).run();
    let differ = plan("h100-80gb").expect(1);
    assert!(differ.stderr.contains("boards of h100-80gb differ in what they get"), "{differ}");
    let one = plan("0x2330").expect(0);
    assert!(one.stdout.contains("GPU 0                 3x 1c.3g.40gb + 4x 1g.10gb\n"), "{one}");
    assert!(one.stdout.contains("|                  3g.40gb                  |\n"), "{one}");
    assert!(plan("0x2324").expect(0).stdout.contains("MIG off"));
    let other = home.gpufleet(["mig", "check", "mig.yaml", "--gpu", "h200"]).run().expect(0);
    assert!(other.stderr.contains("the configuration `a` has no spec for h200-141gb"), "{other}");
    let endless = home.gpufleet(["mig", "check", "/dev/zero"]).run().expect(1);
    assert!(endless.stderr.contains("cannot read /dev/zero"), "{endless}");
}
