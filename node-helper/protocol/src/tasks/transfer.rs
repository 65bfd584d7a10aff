        ignored: &[],
        refused: &[],
        secret: &["url_password", "password", "headers"],
        numbers: &[Number::from("timeout", Unit::Seconds, 0)],
        since: &[
