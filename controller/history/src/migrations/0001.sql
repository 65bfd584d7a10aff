CREATE TABLE audits (
    id BIGINT PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    controller TEXT NOT NULL,
    started BIGINT NOT NULL,
    finished BIGINT NOT NULL,
    series TEXT NOT NULL,
    playbooks TEXT NOT NULL,
    baselines TEXT NOT NULL,
    exit_code BIGINT NOT NULL,
    nodes BIGINT NOT NULL,
    compliant BIGINT NOT NULL,
    verdicts TEXT NOT NULL
);
CREATE INDEX audits_started ON audits (started);

CREATE TABLE controls (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE found (
    id BIGINT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    control BIGINT NOT NULL,
    subject TEXT NOT NULL,
    is_unknown BIGINT NOT NULL,
    is_waived BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX found_control ON found (control);

CREATE TABLE finding_sets (
    id BIGINT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);

CREATE TABLE control_sets (
    id BIGINT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);

CREATE TABLE nodes (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    run TEXT NOT NULL,
    at BIGINT NOT NULL,
    inventory_groups TEXT NOT NULL,
    hardware TEXT NOT NULL,
    driver TEXT NOT NULL,
    verdict TEXT NOT NULL,
    verdict_since BIGINT NOT NULL,
    verdict_audits BIGINT NOT NULL,
    action TEXT NOT NULL,
    compliant BIGINT NOT NULL,
    score BIGINT NOT NULL,
    judged BIGINT NOT NULL,
    applicable BIGINT NOT NULL
);

CREATE TABLE observations (
    node BIGINT NOT NULL,
    audit BIGINT NOT NULL,
    at BIGINT NOT NULL,
    verdict TEXT NOT NULL,
    action TEXT NOT NULL,
    compliant BIGINT NOT NULL,
    score BIGINT NOT NULL,
    judged BIGINT NOT NULL,
    applicable BIGINT NOT NULL,
    finding_set BIGINT NOT NULL,
    control_set BIGINT NOT NULL,
    PRIMARY KEY (node, audit)
);

CREATE TABLE audit_controls (
    control BIGINT NOT NULL,
    audit BIGINT NOT NULL,
    nodes BIGINT NOT NULL,
    PRIMARY KEY (control, audit)
);

CREATE TABLE open_findings (
    node BIGINT NOT NULL,
    control BIGINT NOT NULL,
    subject TEXT NOT NULL,
    is_unknown BIGINT NOT NULL,
    since BIGINT NOT NULL,
    last BIGINT NOT NULL,
    audits BIGINT NOT NULL,
    series TEXT NOT NULL,
    found TEXT NOT NULL,
    counting BIGINT NOT NULL,
    PRIMARY KEY (node, control, subject, is_unknown)
);
CREATE INDEX open_findings_control ON open_findings (control);

CREATE TABLE memories (
    node BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    run TEXT NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE carried (
    node BIGINT PRIMARY KEY,
    body TEXT NOT NULL
);

CREATE TABLE kept (
    id BIGINT PRIMARY KEY,
    since BIGINT NOT NULL
);
