CREATE TABLE approval (
	rollout VARCHAR(255) NOT NULL, 
	wave VARCHAR(255) NOT NULL, 
	role VARCHAR(255) NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (rollout, wave, role), 
	FOREIGN KEY(rollout) REFERENCES rollout (name)
);
CREATE UNIQUE INDEX approval_person ON approval (rollout, wave, who);
CREATE TABLE buffer (
	scope VARCHAR(16) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	planned INTEGER DEFAULT '0' NOT NULL CHECK (planned >= 0), 
	failed INTEGER DEFAULT '0' NOT NULL CHECK (failed >= 0), 
	person INTEGER DEFAULT '0' NOT NULL CHECK (person >= 0), 
	total INTEGER DEFAULT '0' NOT NULL CHECK (total >= 0), 
	planned_limit INTEGER, 
	failed_limit INTEGER, 
	total_limit INTEGER, 
	nodes INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (scope, name)
);
CREATE TABLE class_limits (
	class VARCHAR(255) NOT NULL, 
	limits TEXT NOT NULL, 
	PRIMARY KEY (class)
);
CREATE TABLE denied (
	seq INTEGER NOT NULL, 
	class VARCHAR(255) NOT NULL, 
	digest VARCHAR(255) NOT NULL, 
	reason TEXT NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	at DOUBLE NOT NULL, 
	lifted_at DOUBLE, 
	lifted_by VARCHAR(255), 
	PRIMARY KEY (seq)
);
CREATE UNIQUE INDEX denied_once ON denied (class, digest) WHERE lifted_at IS NULL;
CREATE TABLE document_approval (
	rollout VARCHAR(255) NOT NULL, 
	document VARCHAR(64) NOT NULL, 
	wave VARCHAR(255) NOT NULL, 
	role VARCHAR(255) NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (rollout, document, wave, role), 
	FOREIGN KEY(rollout) REFERENCES rollout (name)
);
CREATE UNIQUE INDEX document_approval_person ON document_approval (rollout, document, wave, who);
CREATE TABLE frozen (
	id VARCHAR(255) NOT NULL, 
	scope VARCHAR(16) NOT NULL CHECK (scope IN ('all', 'class', 'rack', 'rollout')), 
	subject VARCHAR(255) NOT NULL, 
	reason TEXT NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	at DOUBLE NOT NULL, 
	lifted_at DOUBLE, 
	lifted_by VARCHAR(255), 
	PRIMARY KEY (id)
);
CREATE UNIQUE INDEX frozen_once ON frozen (scope, subject) WHERE lifted_at IS NULL;
CREATE TABLE goldnode_schema (
	one INTEGER NOT NULL CHECK (one = 1), 
	version INTEGER NOT NULL, 
	oldest INTEGER NOT NULL, 
	PRIMARY KEY (one)
);
CREATE TABLE hold (
	node VARCHAR(255) NOT NULL, 
	owner VARCHAR(255) NOT NULL, 
	kind VARCHAR(16) NOT NULL CHECK (kind IN ('planned', 'failed', 'person')), 
	rollout VARCHAR(255), 
	epoch INTEGER, 
	since DOUBLE NOT NULL, 
	deadline DOUBLE, 
	boot_id VARCHAR(255), 
	reason TEXT NOT NULL, 
	PRIMARY KEY (node, owner), 
	CONSTRAINT hold_deadline CHECK (kind <> 'planned' OR deadline IS NOT NULL), 
	FOREIGN KEY(node) REFERENCES node (name), 
	FOREIGN KEY(rollout) REFERENCES rollout (name)
);
CREATE INDEX hold_kind ON hold (kind, deadline);
CREATE UNIQUE INDEX hold_one_grant ON hold (node) WHERE kind = 'planned';
CREATE TABLE log (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DOUBLE NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	rollout VARCHAR(255), 
	epoch INTEGER, 
	action VARCHAR(32) NOT NULL, 
	subject VARCHAR(255) NOT NULL, 
	content TEXT NOT NULL
);
CREATE TABLE log_head (
	seq INTEGER NOT NULL, 
	covers INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	at DOUBLE NOT NULL, 
	envelope TEXT, 
	PRIMARY KEY (seq)
);
CREATE INDEX log_rollout ON log (rollout, seq);
CREATE INDEX log_subject ON log (subject, seq);
CREATE TABLE member (
	rollout VARCHAR(255) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	wave INTEGER NOT NULL, 
	PRIMARY KEY (rollout, node), 
	FOREIGN KEY(rollout) REFERENCES rollout (name), 
	FOREIGN KEY(node) REFERENCES node (name)
);
CREATE INDEX member_wave ON member (rollout, wave);
CREATE TABLE node (
	name VARCHAR(255) NOT NULL, 
	class VARCHAR(255) NOT NULL, 
	rack VARCHAR(255), 
	leaf VARCHAR(255), 
	cohort VARCHAR(255), 
	machine VARCHAR(255), 
	tags TEXT, 
	boot_id VARCHAR(255), 
	digest VARCHAR(255), 
	retired BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (name), 
	UNIQUE (machine)
);
CREATE INDEX node_class ON node (class);
CREATE INDEX node_cohort ON node (cohort);
CREATE INDEX node_leaf ON node (leaf);
CREATE INDEX node_rack ON node (rack);
CREATE TABLE observation (
	seq INTEGER NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	kind VARCHAR(16) DEFAULT 'node' NOT NULL, 
	at DOUBLE NOT NULL, 
	received_at DOUBLE NOT NULL, 
	log_seq BIGINT DEFAULT '0' NOT NULL, 
	boot_id VARCHAR(255), 
	digest VARCHAR(255), 
	content TEXT NOT NULL, 
	PRIMARY KEY (seq), 
	FOREIGN KEY(node) REFERENCES node (name)
);
CREATE INDEX observation_node ON observation (node, kind, seq);
CREATE TABLE request (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	node VARCHAR(255), 
	class VARCHAR(255) NOT NULL, 
	work VARCHAR(16) NOT NULL, 
	needs TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	holder VARCHAR(255) NOT NULL, 
	token INTEGER DEFAULT '1' NOT NULL, 
	since DOUBLE NOT NULL, 
	beat_at DOUBLE NOT NULL, 
	lease DOUBLE NOT NULL, 
	time_limit DOUBLE NOT NULL, 
	security BOOLEAN DEFAULT false NOT NULL, 
	rollout VARCHAR(255), 
	places INTEGER DEFAULT '1' NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	turn BIGINT, 
	under VARCHAR(255), 
	offered_at DOUBLE, 
	granted_at DOUBLE, 
	began_at DOUBLE, 
	deadline DOUBLE, 
	ended_at DOUBLE, 
	succeeded BOOLEAN, 
	fit BOOLEAN, 
	result TEXT, 
	together VARCHAR(255), 
	FOREIGN KEY(node) REFERENCES node (name), 
	FOREIGN KEY(rollout) REFERENCES rollout (name)
);
CREATE UNIQUE INDEX request_once ON request (node, work) WHERE state IN ('waiting', 'granted', 'running', 'returning');
CREATE INDEX request_state ON request (state, node);
CREATE INDEX request_turn ON request (turn);
CREATE TABLE rollout (
	name VARCHAR(255) NOT NULL, 
	class VARCHAR(255) NOT NULL, 
	target VARCHAR(255) NOT NULL, 
	document TEXT NOT NULL, 
	limits TEXT NOT NULL, 
	phase VARCHAR(32) NOT NULL, 
	wave INTEGER DEFAULT '0' NOT NULL, 
	why TEXT DEFAULT '' NOT NULL, 
	back VARCHAR(32), 
	author VARCHAR(255) NOT NULL, 
	separate BOOLEAN DEFAULT false NOT NULL, 
	epoch INTEGER DEFAULT '0' NOT NULL CHECK (epoch >= 0), 
	holder VARCHAR(255), 
	beat_at DOUBLE, 
	submitted_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	PRIMARY KEY (name)
);
CREATE INDEX rollout_class ON rollout (class, submitted_at);
CREATE UNIQUE INDEX rollout_one_active ON rollout (class) WHERE phase IN ('running', 'rolling-back');
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE step (
	rollout VARCHAR(255) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	wave INTEGER NOT NULL, 
	direction VARCHAR(16) NOT NULL, 
	phase VARCHAR(32) NOT NULL, 
	epoch INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	target VARCHAR(255), 
	granted_at DOUBLE NOT NULL, 
	changed_at DOUBLE NOT NULL, 
	deadline DOUBLE NOT NULL, 
	prior TEXT, 
	cause TEXT, 
	blame VARCHAR(32), 
	late BOOLEAN DEFAULT false NOT NULL, 
	worker VARCHAR(255), 
	PRIMARY KEY (rollout, node), 
	FOREIGN KEY(rollout) REFERENCES rollout (name), 
	FOREIGN KEY(node) REFERENCES node (name)
);
CREATE INDEX step_phase ON step (rollout, phase);
