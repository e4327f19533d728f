PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE store (
	id INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	created_at VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT one_row CHECK (id = 1)
);
INSERT INTO store VALUES(1,1,'2026-11-29T03:46:30.790104+00:00');
CREATE TABLE campaigns (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	state_reason VARCHAR NOT NULL, 
	strategy VARCHAR NOT NULL, 
	spec_json VARCHAR NOT NULL, 
	problem_json VARCHAR NOT NULL, 
	legal_recipes INTEGER NOT NULL, 
	outcomes INTEGER NOT NULL, 
	driver_seconds DOUBLE NOT NULL, 
	node_seconds_spent DOUBLE NOT NULL, 
	epoch INTEGER NOT NULL, 
	driver_host VARCHAR, 
	driver_pid INTEGER, 
	driven_since VARCHAR, 
	lease_until VARCHAR, 
	created_at VARCHAR NOT NULL, 
	updated_at VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT state_known CHECK (state IN ('created', 'running', 'paused', 'finished', 'failed', 'stopped')), 
	CONSTRAINT running_is_leased CHECK (state <> 'running' OR lease_until IS NOT NULL), 
	CONSTRAINT lease_has_driver CHECK ((driver_host IS NULL) = (lease_until IS NULL)), 
	UNIQUE (name)
);
INSERT INTO campaigns VALUES(1,'tiny-small','finished','the budget is used up: 3 of 3 probes','guided','{"name":"tiny-small","problem":{"model":{"name":"tiny","layers":4,"hidden":64,"heads":4,"kv_heads":4,"ffn_hidden":256,"vocabulary":128,"vocabulary_multiple":128,"positions":"rotary","max_positions":null,"rotary_theta":10000.0,"rotary_scaling":null,"activation":"gelu","norm":"layernorm","norm_epsilon":0.00001,"biases":"none","head_width":null,"key_value_rank":null,"query_rank":null,"rotary_width":0,"value_width":null,"qk_norm":false,"tied_embeddings":false,"experts":0,"experts_per_token":0,"renormalized_experts":true,"routing":"learned","shared_experts":0,"dense_layers":0,"dense_ffn_hidden":null,"router":"softmax","router_groups":1,"router_groups_kept":1,"routed_scale":1.0,"balancing":"none","balancing_weight":0.001,"mtp_layers":0,"attention_window":null,"full_attention_every":0,"window_rotary_theta":null,"attention_sinks":false,"attention_softcap":null,"query_scalar":null,"parallel_residual":false,"post_norms":false,"scaled_embedding":false,"logits_softcap":null,"attention":"flash"},"cluster":{"name":"dgx-a100-80gb","device":"a100-80gb","backend":"cuda","nodes":1,"devices_per_node":8,"memory_gib_per_device":79.2,"memory_gb_per_s":2039.0,"peak_tflops":{"fp32":19.5,"bf16":312.0,"fp16":312.0,"fp8":null},"matmul_share":0.86,"mxfp8":false,"compute_units":108,"matmul_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"links":{"pair_gb_per_s":null,"node_gb_per_s":300.0,"nic_gb_per_s":25.0,"nics_per_node":8,"host_gb_per_s":null},"efficiencies":{},"expected_error":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"fitted":[],"nvme_path":null,"price_per_node_hour":null,"source":"NVIDIA DGX A100 (640GB) datasheet: NVSwitch, 8 HDR ports","group":[]},"sequence_length":64,"global_batch":{"minimum":8,"maximum":8},"precision":"bf16","tolerance":"rounding","software":{"code":null,"attention":null,"norm":null,"activation":null,"rotary":null,"cross_entropy":null,"dropout":null,"permutation":null,"dispatcher":null,"dispatch_overlap":null,"tensor_overlap":null,"cuda_graphs":null,"gradients":null,"selective":null,"reduction":null,"overlap":null},"billion_tokens":null},"space":{"group":[],"tensor_parallel":[1,2],"pipeline_parallel":[1],"context_parallel":[1],"micro_batch_seqs":[1],"accumulation":[],"devices":[],"virtual_stages":[1],"schedule":["1f1b"],"sharding":["none","zero-3"],"recompute":["none"],"sequence_parallel":[false],"replication":["replicate"],"compile":[false],"loss_chunks":[1],"feed_forward_tiles":[1],"optimizer_state":["fp32"],"activation_offload":[false],"gradient_sync":["last"],"engine":["torch"],"offload":["none"],"expert_parallel":[1],"expert_tensor_parallel":[1],"secondary_partition":[1],"quantized_weights":[false],"quantized_gradients":[false],"layer_split":["even"],"rank_order":["tp-dp-pp"],"async_tensor_parallel":[false],"fp8":["none"],"custom":{}},"search":{"strategy":"guided","objectives":["tokens"],"seed":0,"parallel_probes":1,"identical_failures":5,"stop_below_improvement":0.003,"warm_start":true,"repeats":1,"reuse":true,"probe_nodes":null,"confirm_probes":2,"prune_infeasible":true,"deephyper":{"surrogate":"extra-trees","acquisition":"UCBd","kappa":1.96,"xi":0.1,"initial_measurements":8,"failures":"min"},"baseline":null},"budget":{"probes":3,"minutes":null,"node_hours":null,"cost":null,"hard":false},"probe":{"warm_up_steps":2,"measured_steps":null,"min_measured_steps":3,"max_steps":15,"precision":0.03,"deadline_s":300.0,"step_deadline_s":120.0,"foreign_load_limit":0.1,"optimizer":"adamw","learning_rate":0.0003,"optimizer_constants":{"weight_decay":0.1,"beta1":0.9,"beta2":0.95,"epsilon":1e-8,"momentum":0.9,"gradient_clip_norm":1.0}},"data":{"path":null,"files":[]},"dispatch":{"backend":null,"address":null,"shared_files":null,"resources":{},"scheduler":null,"account":null,"queue":null,"qos":null,"constraint":null,"walltime":null,"nodes_per_allocation":null,"allocations":null,"processors_per_node":null,"scheduler_options":[],"select_options":null,"queue_limit_minutes":null,"driver_address":null,"launcher":null,"launcher_options":[],"worker_init":[],"network_interface":null,"lifeline_s":null,"quarantine_after":null,"quarantine_minutes":null,"group":{}},"table":{"path":null,"problem":null},"command":{"arguments":[],"trainer":null,"log":null,"log_patterns":[],"start_per":"node","folder":null,"pass_environment":["PATH","HOME","USER","LANG","TMPDIR"],"environment":{}},"evaluator":"simulated","run_root":"/home/ada/frontrunner-runs","file":null,"changes":{},"confirms":null}','{"cluster":"dgx-a100-80gb","device":"a100-80gb","devices":8,"figures":"simulated","global_batch":"8","model":"tiny","parameters":213568,"precision":"bf16","sequence_length":64}',4,3,0.87527510299969435436,1.2304518781413717931e-05,1,NULL,NULL,NULL,NULL,'2026-11-29T03:46:31.255651+00:00','2026-11-29T03:46:32.249152+00:00');
INSERT INTO campaigns VALUES(2,'tiny','finished','the budget is used up: 2 of 2 probes','guided','{"name":"tiny","problem":{"model":{"name":"tiny","layers":4,"hidden":64,"heads":4,"kv_heads":4,"ffn_hidden":256,"vocabulary":128,"vocabulary_multiple":128,"positions":"rotary","max_positions":null,"rotary_theta":10000.0,"rotary_scaling":null,"activation":"gelu","norm":"layernorm","norm_epsilon":0.00001,"biases":"none","head_width":null,"key_value_rank":null,"query_rank":null,"rotary_width":0,"value_width":null,"qk_norm":false,"tied_embeddings":false,"experts":0,"experts_per_token":0,"renormalized_experts":true,"routing":"learned","shared_experts":0,"dense_layers":0,"dense_ffn_hidden":null,"router":"softmax","router_groups":1,"router_groups_kept":1,"routed_scale":1.0,"balancing":"none","balancing_weight":0.001,"mtp_layers":0,"attention_window":null,"full_attention_every":0,"window_rotary_theta":null,"attention_sinks":false,"attention_softcap":null,"query_scalar":null,"parallel_residual":false,"post_norms":false,"scaled_embedding":false,"logits_softcap":null,"attention":"flash"},"cluster":{"name":"dgx-a100-80gb","device":"a100-80gb","backend":"cuda","nodes":4,"devices_per_node":8,"memory_gib_per_device":79.2,"memory_gb_per_s":2039.0,"peak_tflops":{"fp32":19.5,"bf16":312.0,"fp16":312.0,"fp8":null},"matmul_share":0.86,"mxfp8":false,"compute_units":108,"matmul_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"links":{"pair_gb_per_s":null,"node_gb_per_s":300.0,"nic_gb_per_s":25.0,"nics_per_node":8,"host_gb_per_s":null},"efficiencies":{},"expected_error":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"fitted":[],"nvme_path":null,"price_per_node_hour":null,"source":"NVIDIA DGX A100 (640GB) datasheet: NVSwitch, 8 HDR ports","group":[]},"sequence_length":64,"global_batch":{"minimum":32,"maximum":32},"precision":"bf16","tolerance":"rounding","software":{"code":null,"attention":null,"norm":null,"activation":null,"rotary":null,"cross_entropy":null,"dropout":null,"permutation":null,"dispatcher":null,"dispatch_overlap":null,"tensor_overlap":null,"cuda_graphs":null,"gradients":null,"selective":null,"reduction":null,"overlap":null},"billion_tokens":null},"space":{"group":[],"tensor_parallel":[1,2],"pipeline_parallel":[1],"context_parallel":[1],"micro_batch_seqs":[1],"accumulation":[],"devices":[],"virtual_stages":[1],"schedule":["1f1b"],"sharding":["none","zero-3"],"recompute":["none"],"sequence_parallel":[false],"replication":["replicate"],"compile":[false],"loss_chunks":[1],"feed_forward_tiles":[1],"optimizer_state":["fp32"],"activation_offload":[false],"gradient_sync":["last"],"engine":["torch"],"offload":["none"],"expert_parallel":[1],"expert_tensor_parallel":[1],"secondary_partition":[1],"quantized_weights":[false],"quantized_gradients":[false],"layer_split":["even"],"rank_order":["tp-dp-pp"],"async_tensor_parallel":[false],"fp8":["none"],"custom":{}},"search":{"strategy":"guided","objectives":["tokens"],"seed":0,"parallel_probes":1,"identical_failures":5,"stop_below_improvement":0.003,"warm_start":true,"repeats":1,"reuse":true,"probe_nodes":1,"confirm_probes":2,"prune_infeasible":true,"deephyper":{"surrogate":"extra-trees","acquisition":"UCBd","kappa":1.96,"xi":0.1,"initial_measurements":8,"failures":"min"},"baseline":null},"budget":{"probes":5,"minutes":null,"node_hours":null,"cost":null,"hard":false},"probe":{"warm_up_steps":2,"measured_steps":null,"min_measured_steps":3,"max_steps":15,"precision":0.03,"deadline_s":300.0,"step_deadline_s":120.0,"foreign_load_limit":0.1,"optimizer":"adamw","learning_rate":0.0003,"optimizer_constants":{"weight_decay":0.1,"beta1":0.9,"beta2":0.95,"epsilon":1e-8,"momentum":0.9,"gradient_clip_norm":1.0}},"data":{"path":null,"files":[]},"dispatch":{"backend":null,"address":null,"shared_files":null,"resources":{},"scheduler":null,"account":null,"queue":null,"qos":null,"constraint":null,"walltime":null,"nodes_per_allocation":null,"allocations":null,"processors_per_node":null,"scheduler_options":[],"select_options":null,"queue_limit_minutes":null,"driver_address":null,"launcher":null,"launcher_options":[],"worker_init":[],"network_interface":null,"lifeline_s":null,"quarantine_after":null,"quarantine_minutes":null,"group":{}},"table":{"path":null,"problem":null},"command":{"arguments":[],"trainer":null,"log":null,"log_patterns":[],"start_per":"node","folder":null,"pass_environment":["PATH","HOME","USER","LANG","TMPDIR"],"environment":{}},"evaluator":"simulated","run_root":"/home/ada/frontrunner-runs","file":"/home/ada/tiny.toml","changes":{},"confirms":"tiny-small"}','{"cluster":"dgx-a100-80gb","device":"a100-80gb","devices":32,"figures":"simulated","global_batch":"32","model":"tiny","nodes":4,"parameters":213568,"precision":"bf16","sequence_length":64,"small_campaign":"tiny-small","small_scale":"1 of 4 nodes, batch 8 of 32"}',4,2,0.53920903299967903876,3.2218187337020281601e-05,2,NULL,NULL,NULL,NULL,'2026-11-29T03:46:31.298478+00:00','2026-11-29T03:46:33.132940+00:00');
INSERT INTO campaigns VALUES(3,'grouped','finished','the budget is used up: 5 of 5 probes','guided','{"name":"grouped","problem":{"model":{"name":"tiny","layers":4,"hidden":64,"heads":4,"kv_heads":4,"ffn_hidden":256,"vocabulary":128,"vocabulary_multiple":128,"positions":"rotary","max_positions":null,"rotary_theta":10000.0,"rotary_scaling":null,"activation":"gelu","norm":"layernorm","norm_epsilon":0.00001,"biases":"none","head_width":null,"key_value_rank":null,"query_rank":null,"rotary_width":0,"value_width":null,"qk_norm":false,"tied_embeddings":false,"experts":0,"experts_per_token":0,"renormalized_experts":true,"routing":"learned","shared_experts":0,"dense_layers":0,"dense_ffn_hidden":null,"router":"softmax","router_groups":1,"router_groups_kept":1,"routed_scale":1.0,"balancing":"none","balancing_weight":0.001,"mtp_layers":0,"attention_window":null,"full_attention_every":0,"window_rotary_theta":null,"attention_sinks":false,"attention_softcap":null,"query_scalar":null,"parallel_residual":false,"post_norms":false,"scaled_embedding":false,"logits_softcap":null,"attention":"flash"},"cluster":{"name":"custom","device":"h100-80gb + a100-80gb","backend":"cuda","nodes":3,"devices_per_node":8,"memory_gib_per_device":79.2,"memory_gb_per_s":null,"peak_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"matmul_share":null,"mxfp8":false,"compute_units":null,"matmul_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"links":{"pair_gb_per_s":null,"node_gb_per_s":null,"nic_gb_per_s":null,"nics_per_node":null,"host_gb_per_s":null},"efficiencies":{},"expected_error":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"fitted":[],"nvme_path":null,"price_per_node_hour":null,"source":"its groups","group":[{"name":"h100","device":"h100-80gb","backend":"cuda","nodes":1,"devices_per_node":8,"memory_gib_per_device":79.6,"memory_gb_per_s":3350.0,"peak_tflops":{"fp32":67.0,"bf16":989.4,"fp16":989.4,"fp8":1978.9},"matmul_share":0.73,"mxfp8":false,"compute_units":132,"matmul_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"links":{"pair_gb_per_s":null,"node_gb_per_s":450.0,"nic_gb_per_s":50.0,"nics_per_node":8,"host_gb_per_s":null},"efficiencies":{},"expected_error":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"fitted":[],"nvme_path":null,"price_per_node_hour":30.0,"source":"NVIDIA DGX H100 datasheet: NVSwitch, 8 NDR ports","group":[]},{"name":"a100","device":"a100-80gb","backend":"cuda","nodes":2,"devices_per_node":8,"memory_gib_per_device":79.2,"memory_gb_per_s":2039.0,"peak_tflops":{"fp32":19.5,"bf16":312.0,"fp16":312.0,"fp8":null},"matmul_share":0.86,"mxfp8":false,"compute_units":108,"matmul_tflops":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"links":{"pair_gb_per_s":null,"node_gb_per_s":300.0,"nic_gb_per_s":25.0,"nics_per_node":8,"host_gb_per_s":null},"efficiencies":{},"expected_error":{"fp32":null,"bf16":null,"fp16":null,"fp8":null},"fitted":[],"nvme_path":null,"price_per_node_hour":20.0,"source":"NVIDIA DGX A100 (640GB) datasheet: NVSwitch, 8 HDR ports","group":[]}]},"sequence_length":64,"global_batch":{"minimum":32,"maximum":32},"precision":"bf16","tolerance":"rounding","software":{"code":null,"attention":null,"norm":null,"activation":null,"rotary":null,"cross_entropy":null,"dropout":null,"permutation":null,"dispatcher":null,"dispatch_overlap":null,"tensor_overlap":null,"cuda_graphs":null,"gradients":null,"selective":null,"reduction":null,"overlap":null},"billion_tokens":null},"space":{"group":[],"tensor_parallel":[1,2],"pipeline_parallel":[1],"context_parallel":[1],"micro_batch_seqs":[1],"accumulation":[],"devices":[],"virtual_stages":[1],"schedule":["1f1b"],"sharding":["none","zero-3"],"recompute":["none"],"sequence_parallel":[false],"replication":["replicate"],"compile":[false],"loss_chunks":[1],"feed_forward_tiles":[1],"optimizer_state":["fp32"],"activation_offload":[false],"gradient_sync":["last"],"engine":["torch"],"offload":["none"],"expert_parallel":[1],"expert_tensor_parallel":[1],"secondary_partition":[1],"quantized_weights":[false],"quantized_gradients":[false],"layer_split":["even"],"rank_order":["tp-dp-pp"],"async_tensor_parallel":[false],"fp8":["none"],"custom":{}},"search":{"strategy":"guided","objectives":["tokens"],"seed":0,"parallel_probes":1,"identical_failures":5,"stop_below_improvement":0.003,"warm_start":true,"repeats":1,"reuse":true,"probe_nodes":null,"confirm_probes":3,"prune_infeasible":true,"deephyper":{"surrogate":"extra-trees","acquisition":"UCBd","kappa":1.96,"xi":0.1,"initial_measurements":8,"failures":"min"},"baseline":null},"budget":{"probes":5,"minutes":null,"node_hours":null,"cost":null,"hard":false},"probe":{"warm_up_steps":2,"measured_steps":null,"min_measured_steps":3,"max_steps":15,"precision":0.03,"deadline_s":300.0,"step_deadline_s":120.0,"foreign_load_limit":0.1,"optimizer":"adamw","learning_rate":0.0003,"optimizer_constants":{"weight_decay":0.1,"beta1":0.9,"beta2":0.95,"epsilon":1e-8,"momentum":0.9,"gradient_clip_norm":1.0}},"data":{"path":null,"files":[]},"dispatch":{"backend":null,"address":null,"shared_files":null,"resources":{},"scheduler":null,"account":null,"queue":null,"qos":null,"constraint":null,"walltime":null,"nodes_per_allocation":null,"allocations":null,"processors_per_node":null,"scheduler_options":[],"select_options":null,"queue_limit_minutes":null,"driver_address":null,"launcher":null,"launcher_options":[],"worker_init":[],"network_interface":null,"lifeline_s":null,"quarantine_after":null,"quarantine_minutes":null,"group":{}},"table":{"path":null,"problem":null},"command":{"arguments":[],"trainer":null,"log":null,"log_patterns":[],"start_per":"node","folder":null,"pass_environment":["PATH","HOME","USER","LANG","TMPDIR"],"environment":{}},"evaluator":"simulated","run_root":"/home/ada/frontrunner-runs","file":"/home/ada/grouped.toml","changes":{},"confirms":null}','{"cluster":"custom","device":"h100-80gb + a100-80gb","devices":24,"figures":"simulated","global_batch":"32","groups":{"a100":{"device":"a100-80gb","devices_per_node":8,"nodes":2,"price_per_node_hour":20.0},"h100":{"device":"h100-80gb","devices_per_node":8,"nodes":1,"price_per_node_hour":30.0}},"model":"tiny","parameters":213568,"precision":"bf16","sequence_length":64}',8,5,1.8901804839997566887,3.6842890831302419092e-05,1,NULL,NULL,NULL,NULL,'2026-11-29T03:46:35.264235+00:00','2026-11-29T03:46:37.246589+00:00');
CREATE TABLE deletions (
	id INTEGER NOT NULL, 
	campaign VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE labels (
	campaign_id INTEGER NOT NULL, 
	tags_json VARCHAR NOT NULL, 
	note VARCHAR NOT NULL, 
	hidden_at VARCHAR, 
	PRIMARY KEY (campaign_id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
CREATE TABLE holders (
	campaign_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	boot_id VARCHAR NOT NULL, 
	started_ticks BIGINT NOT NULL, 
	PRIMARY KEY (campaign_id, epoch), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO holders VALUES(1,1,'c75c9f02-d8a8-4d9e-9f58-7338c4222ca6',502035);
INSERT INTO holders VALUES(2,1,'c75c9f02-d8a8-4d9e-9f58-7338c4222ca6',502035);
INSERT INTO holders VALUES(2,2,'c75c9f02-d8a8-4d9e-9f58-7338c4222ca6',502035);
INSERT INTO holders VALUES(3,1,'c75c9f02-d8a8-4d9e-9f58-7338c4222ca6',502596);
CREATE TABLE provenance (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	recorded_at VARCHAR NOT NULL, 
	provenance_json VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO provenance VALUES(1,1,'2026-11-29T03:46:31.422191+00:00','{"command_line":["frontrunner","launch","tiny.toml"],"data":[],"device":"a100-80gb","git_dirty":null,"git_revision":null,"host":"laptop","platform":"Linux-6.18.44-fc-v657-x86_64-with-glibc2.36","versions":{"deephyper":"0.13.2","deepspeed":"0.19.8","frontrunner":"0.1.0","numpy":"2.4.6","optuna":"5.0.0","python":"3.11.7","sqlalchemy":"2.1.9","torch":"2.13.0+cpu"}}');
INSERT INTO provenance VALUES(2,2,'2026-11-29T03:46:32.658867+00:00','{"command_line":["frontrunner","launch","tiny.toml"],"data":[],"device":"a100-80gb","git_dirty":null,"git_revision":null,"host":"laptop","platform":"Linux-6.18.44-fc-v657-x86_64-with-glibc2.36","versions":{"deephyper":"0.13.2","deepspeed":"0.19.8","frontrunner":"0.1.0","numpy":"2.4.6","optuna":"5.0.0","python":"3.11.7","sqlalchemy":"2.1.9","torch":"2.13.0+cpu"}}');
INSERT INTO provenance VALUES(3,3,'2026-11-29T03:46:35.378394+00:00','{"command_line":["frontrunner","launch","grouped.toml"],"data":[],"device":"h100-80gb + a100-80gb","git_dirty":null,"git_revision":null,"host":"laptop","platform":"Linux-6.18.44-fc-v657-x86_64-with-glibc2.36","versions":{"deephyper":"0.13.2","deepspeed":"0.19.8","frontrunner":"0.1.0","numpy":"2.4.6","optuna":"5.0.0","python":"3.11.7","sqlalchemy":"2.1.9","torch":"2.13.0+cpu"}}');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	recipe_id VARCHAR NOT NULL, 
	recipe_json VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	outcome_number INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (campaign_id, recipe_id), 
	UNIQUE (campaign_id, number), 
	UNIQUE (campaign_id, outcome_number), 
	CONSTRAINT state_known CHECK (state IN ('queued', 'running', 'measured', 'failed')), 
	CONSTRAINT final_is_numbered CHECK ((state IN ('measured', 'failed')) = (outcome_number IS NOT NULL)), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO trials VALUES(1,1,1,'2b95d4f0f36a','{"accumulation":1,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',1);
INSERT INTO trials VALUES(2,1,2,'7a853424d78b','{"accumulation":2,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',2);
INSERT INTO trials VALUES(3,1,3,'5e7086e04835','{"accumulation":1,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":8,"optimizer":8,"parameters":8},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',3);
INSERT INTO trials VALUES(4,2,1,'65b284713e54','{"accumulation":1,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":32,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',1);
INSERT INTO trials VALUES(5,2,2,'dd1fccf2f2e9','{"accumulation":1,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":32,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":32,"optimizer":32,"parameters":32},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',2);
INSERT INTO trials VALUES(6,3,1,'9c93d5095159','{"accumulation":4,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","group":"h100","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',1);
INSERT INTO trials VALUES(7,3,2,'4defcd3c003d','{"accumulation":2,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":16,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","group":"a100","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',2);
INSERT INTO trials VALUES(8,3,3,'eb5a7ec4e4c2','{"accumulation":4,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","group":"h100","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":8,"optimizer":8,"parameters":8},"synchronise":"last","tensor_parallel":1,"virtual_stages":1}','measured',3);
INSERT INTO trials VALUES(9,3,4,'529b70ec884f','{"accumulation":8,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","group":"h100","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":1,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',4);
INSERT INTO trials VALUES(10,3,5,'768c7edd394e','{"accumulation":8,"activation_offload":false,"async_tensor_parallel":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","expert_parallel":1,"expert_tensor_parallel":1,"feed_forward_tiles":1,"fp8":"none","group":"h100","layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":1,"quantized_gradients":false,"quantized_weights":false,"rank_order":"tp-dp-pp","recompute":"none","replication":"replicate","schedule":"none","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":4,"optimizer":4,"parameters":4},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',5);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	data_json VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO events VALUES(1,1,'2026-11-29T03:46:31.384279+00:00','launched','{"driver":"laptop:28507","user":"root"}');
INSERT INTO events VALUES(2,1,'2026-11-29T03:46:32.012863+00:00','proposed','{"belief":{"cells":[[1,"none",56980.0],[1,"zero-3",56550.0],[2,"none",26280.0],[2,"zero-3",26180.0]],"x":"tensor_parallel","y":"sharding"},"chance":1.0,"expected_improvement":null,"of_front":false,"tokens_per_s":56976.52286363265,"trial":1}');
INSERT INTO events VALUES(3,1,'2026-11-29T03:46:32.098265+00:00','outlook','{"expected_improvement":6.190026408841675e-118,"gap":0.0,"gap_at_most":0.0,"measured":1,"of_front":false}');
INSERT INTO events VALUES(4,1,'2026-11-29T03:46:32.109408+00:00','proposed','{"belief":{"cells":[[1,"none",654700000.0],[1,"zero-3",57850.0],[2,"none",26850.0],[2,"zero-3",26660.0]],"x":"tensor_parallel","y":"sharding"},"chance":1.0,"expected_improvement":1.1455163473266764e-146,"of_front":false,"tokens_per_s":26852.26527456788,"trial":2}');
INSERT INTO events VALUES(5,1,'2026-11-29T03:46:32.160120+00:00','outlook','{"expected_improvement":0.17538581161035693,"gap":0.15084785249952376,"gap_at_most":0.5483574718613516,"measured":2,"of_front":false}');
INSERT INTO events VALUES(6,1,'2026-11-29T03:46:32.174051+00:00','proposed','{"belief":{"cells":[[1,"none",654700000.0],[1,"zero-3",664800000.0],[2,"none",602400000.0],[2,"zero-3",327400000.0]],"x":"tensor_parallel","y":"sharding"},"chance":1.0,"expected_improvement":0.17538581161035693,"of_front":false,"tokens_per_s":664817574.1891454,"trial":3}');
INSERT INTO events VALUES(7,1,'2026-11-29T03:46:32.228907+00:00','outlook','{"expected_improvement":5.706355133279855e-06,"gap":0.0005052127897877349,"gap_at_most":0.0005052127897877349,"measured":3,"of_front":false}');
INSERT INTO events VALUES(8,2,'2026-11-29T03:46:32.508809+00:00','prediction','{"chance":1.0,"high":6615439341.7666025,"low":517308462.15586436,"recipe":"{\"accumulation\":1,\"activation_offload\":false,\"async_tensor_parallel\":false,\"compile\":false,\"context_parallel\":1,\"devices\":32,\"engine\":\"torch\",\"expert_parallel\":1,\"expert_tensor_parallel\":1,\"feed_forward_tiles\":1,\"fp8\":\"none\",\"layers_per_stage\":[],\"loss_chunks\":1,\"micro_batch_seqs\":1,\"offload\":\"none\",\"optimizer_state\":\"fp32\",\"pipeline_parallel\":1,\"quantized_gradients\":false,\"quantized_weights\":false,\"rank_order\":\"tp-dp-pp\",\"recompute\":\"none\",\"replication\":\"replicate\",\"schedule\":\"none\",\"secondary_partition\":1,\"sequence_parallel\":false,\"sharding\":{\"gradients\":1,\"optimizer\":1,\"parameters\":1},\"synchronise\":\"last\",\"tensor_parallel\":1,\"virtual_stages\":1}","recipe_id":"65b284713e54","tokens_per_s":1849932203.7616546}');
INSERT INTO events VALUES(9,2,'2026-11-29T03:46:32.508809+00:00','prediction','{"chance":1.0,"high":11643211898.554974,"low":173670823.37180713,"recipe":"{\"accumulation\":1,\"activation_offload\":false,\"async_tensor_parallel\":false,\"compile\":false,\"context_parallel\":1,\"devices\":32,\"engine\":\"torch\",\"expert_parallel\":1,\"expert_tensor_parallel\":1,\"feed_forward_tiles\":1,\"fp8\":\"none\",\"layers_per_stage\":[],\"loss_chunks\":1,\"micro_batch_seqs\":1,\"offload\":\"none\",\"optimizer_state\":\"fp32\",\"pipeline_parallel\":1,\"quantized_gradients\":false,\"quantized_weights\":false,\"rank_order\":\"tp-dp-pp\",\"recompute\":\"none\",\"replication\":\"replicate\",\"schedule\":\"none\",\"secondary_partition\":1,\"sequence_parallel\":false,\"sharding\":{\"gradients\":32,\"optimizer\":32,\"parameters\":32},\"synchronise\":\"last\",\"tensor_parallel\":1,\"virtual_stages\":1}","recipe_id":"dd1fccf2f2e9","tokens_per_s":1456477276.546915}');
INSERT INTO events VALUES(10,2,'2026-11-29T03:46:32.508809+00:00','prediction','{"chance":1.0,"high":3406215928.011454,"low":337197165.8528906,"recipe":"{\"accumulation\":2,\"activation_offload\":false,\"async_tensor_parallel\":false,\"compile\":false,\"context_parallel\":1,\"devices\":32,\"engine\":\"torch\",\"expert_parallel\":1,\"expert_tensor_parallel\":1,\"feed_forward_tiles\":1,\"fp8\":\"none\",\"layers_per_stage\":[],\"loss_chunks\":1,\"micro_batch_seqs\":1,\"offload\":\"none\",\"optimizer_state\":\"fp32\",\"pipeline_parallel\":1,\"quantized_gradients\":false,\"quantized_weights\":false,\"rank_order\":\"tp-dp-pp\",\"recompute\":\"none\",\"replication\":\"replicate\",\"schedule\":\"none\",\"secondary_partition\":1,\"sequence_parallel\":false,\"sharding\":{\"gradients\":1,\"optimizer\":1,\"parameters\":1},\"synchronise\":\"last\",\"tensor_parallel\":2,\"virtual_stages\":1}","recipe_id":"3d9f85e7943c","tokens_per_s":1071712510.7222658}');
INSERT INTO events VALUES(11,2,'2026-11-29T03:46:32.508809+00:00','prediction','{"chance":1.0,"high":3250306924.297526,"low":279789252.30844957,"recipe":"{\"accumulation\":2,\"activation_offload\":false,\"async_tensor_parallel\":false,\"compile\":false,\"context_parallel\":1,\"devices\":32,\"engine\":\"torch\",\"expert_parallel\":1,\"expert_tensor_parallel\":1,\"feed_forward_tiles\":1,\"fp8\":\"none\",\"layers_per_stage\":[],\"loss_chunks\":1,\"micro_batch_seqs\":1,\"offload\":\"none\",\"optimizer_state\":\"fp32\",\"pipeline_parallel\":1,\"quantized_gradients\":false,\"quantized_weights\":false,\"rank_order\":\"tp-dp-pp\",\"recompute\":\"none\",\"replication\":\"replicate\",\"schedule\":\"none\",\"secondary_partition\":1,\"sequence_parallel\":false,\"sharding\":{\"gradients\":16,\"optimizer\":16,\"parameters\":16},\"synchronise\":\"last\",\"tensor_parallel\":2,\"virtual_stages\":1}","recipe_id":"d565b08db893","tokens_per_s":978973858.5884253}');
INSERT INTO events VALUES(12,2,'2026-11-29T03:46:32.597033+00:00','resumed','{"driver":"laptop:28507","user":"root"}');
INSERT INTO events VALUES(13,2,'2026-11-29T03:46:32.939091+00:00','evidence','{"answers":0,"learned_from":3,"origins":"campaign tiny-small"}');
INSERT INTO events VALUES(14,2,'2026-11-29T03:46:32.974280+00:00','proposed','{"belief":{"cells":[[1,"none",1850000000.0],[1,"zero-3",1456000000.0],[2,"none",1072000000.0],[2,"zero-3",979000000.0]],"x":"tensor_parallel","y":"sharding"},"chance":1.0,"expected_improvement":null,"of_front":false,"tokens_per_s":1849932203.7616546,"trial":1}');
INSERT INTO events VALUES(15,2,'2026-11-29T03:46:33.047595+00:00','outlook','{"expected_improvement":0.060125889645448016,"gap":0.03675575505361901,"gap_at_most":0.21875856977339814,"measured":1,"of_front":false}');
INSERT INTO events VALUES(16,2,'2026-11-29T03:46:33.055530+00:00','proposed','{"belief":{"cells":[[1,"none",2619000000.0],[1,"zero-3",2374000000.0],[2,"none",1216000000.0],[2,"zero-3",1183000000.0]],"x":"tensor_parallel","y":"sharding"},"chance":1.0,"expected_improvement":0.060125889645448016,"of_front":false,"tokens_per_s":2373857106.6307883,"trial":2}');
INSERT INTO events VALUES(17,2,'2026-11-29T03:46:33.115430+00:00','outlook','{"expected_improvement":3.1516202930889656e-26,"gap":0.0,"gap_at_most":0.0,"measured":2,"of_front":false}');
INSERT INTO events VALUES(18,3,'2026-11-29T03:46:35.361043+00:00','launched','{"driver":"laptop:28527","user":"root"}');
INSERT INTO events VALUES(19,3,'2026-11-29T03:46:36.497078+00:00','evidence','{"answers":0,"learned_from":5,"origins":"campaign tiny-small, campaign tiny"}');
INSERT INTO events VALUES(20,3,'2026-11-29T03:46:36.591822+00:00','proposed','{"belief":{"cells":[[1,"h100",637700000.0],[1,"a100",1274000000.0],[2,"h100",294000000.0],[2,"a100",587800000.0]],"x":"tensor_parallel","y":"group"},"chance":1.0,"expected_improvement":null,"of_front":false,"tokens_per_s":637674368.4142346,"trial":1}');
INSERT INTO events VALUES(21,3,'2026-11-29T03:46:36.690569+00:00','proposed','{"belief":{"cells":[[1,"h100",2076000000.0],[1,"a100",1639000000.0],[2,"h100",601200000.0],[2,"a100",836100000.0]],"x":"tensor_parallel","y":"group"},"chance":1.0,"expected_improvement":0.0314076196376899,"of_front":false,"tokens_per_s":1639101886.8101745,"trial":2}');
INSERT INTO events VALUES(22,3,'2026-11-29T03:46:36.903483+00:00','outlook','{"expected_improvement":0.022625470287356994,"gap":0.015448580767876755,"gap_at_most":0.04696593010055261,"measured":2,"of_front":false}');
INSERT INTO events VALUES(23,3,'2026-11-29T03:46:36.926132+00:00','proposed','{"belief":{"cells":[[1,"h100",2076000000.0],[1,"a100",1414000000.0],[2,"h100",618300000.0],[2,"a100",773600000.0]],"x":"tensor_parallel","y":"group"},"chance":1.0,"expected_improvement":0.022625470287356994,"of_front":false,"tokens_per_s":1166402826.3461034,"trial":3}');
INSERT INTO events VALUES(24,3,'2026-11-29T03:46:37.011380+00:00','outlook','{"expected_improvement":0.009393758944858485,"gap":0.009882631422363702,"gap_at_most":0.02785985475682151,"measured":3,"of_front":false}');
INSERT INTO events VALUES(25,3,'2026-11-29T03:46:37.031596+00:00','proposed','{"belief":{"cells":[[1,"h100",2076000000.0],[1,"a100",1457000000.0],[2,"h100",1121000000.0],[2,"a100",963200000.0]],"x":"tensor_parallel","y":"group"},"chance":1.0,"expected_improvement":0.005512340710313937,"of_front":false,"tokens_per_s":1120916217.7482235,"trial":4}');
INSERT INTO events VALUES(26,3,'2026-11-29T03:46:37.122464+00:00','outlook','{"expected_improvement":0.00872079603596733,"gap":0.012932361514661001,"gap_at_most":0.0918319358475928,"measured":4,"of_front":false}');
INSERT INTO events VALUES(27,3,'2026-11-29T03:46:37.144328+00:00','proposed','{"belief":{"cells":[[1,"h100",2076000000.0],[1,"a100",1458000000.0],[2,"h100",1910000000.0],[2,"a100",1076000000.0]],"x":"tensor_parallel","y":"group"},"chance":1.0,"expected_improvement":0.006463805642201968,"of_front":false,"tokens_per_s":1300431423.0305603,"trial":5}');
INSERT INTO events VALUES(28,3,'2026-11-29T03:46:37.224310+00:00','outlook','{"expected_improvement":0.011662945415271145,"gap":0.016266351768940247,"gap_at_most":0.12162762382247821,"measured":5,"of_front":false}');
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	run_folder VARCHAR NOT NULL, 
	provenance_id INTEGER, 
	started_at VARCHAR NOT NULL, 
	finished_at VARCHAR, 
	PRIMARY KEY (id), 
	UNIQUE (trial_id, number), 
	CONSTRAINT state_known CHECK (state IN ('running', 'measured', 'failed', 'lost')), 
	CONSTRAINT final_has_time CHECK ((state = 'running') = (finished_at IS NULL)), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id), 
	FOREIGN KEY(trial_id) REFERENCES trials (id), 
	FOREIGN KEY(provenance_id) REFERENCES provenance (id)
);
INSERT INTO attempts VALUES(1,1,1,1,'measured','/home/ada/frontrunner-runs/tiny-small/00001.1',1,'2026-11-29T03:46:32.012863+00:00','2026-11-29T03:46:32.045255+00:00');
INSERT INTO attempts VALUES(2,1,2,1,'measured','/home/ada/frontrunner-runs/tiny-small/00002.1',1,'2026-11-29T03:46:32.109408+00:00','2026-11-29T03:46:32.131296+00:00');
INSERT INTO attempts VALUES(3,1,3,1,'measured','/home/ada/frontrunner-runs/tiny-small/00003.1',1,'2026-11-29T03:46:32.174051+00:00','2026-11-29T03:46:32.190347+00:00');
INSERT INTO attempts VALUES(4,2,4,1,'measured','/home/ada/frontrunner-runs/tiny/00001.1',2,'2026-11-29T03:46:32.974280+00:00','2026-11-29T03:46:33.001169+00:00');
INSERT INTO attempts VALUES(5,2,5,1,'measured','/home/ada/frontrunner-runs/tiny/00002.1',2,'2026-11-29T03:46:33.055530+00:00','2026-11-29T03:46:33.076954+00:00');
INSERT INTO attempts VALUES(6,3,6,1,'measured','/home/ada/frontrunner-runs/grouped/00001.1',3,'2026-11-29T03:46:36.591822+00:00','2026-11-29T03:46:36.633348+00:00');
INSERT INTO attempts VALUES(7,3,7,1,'measured','/home/ada/frontrunner-runs/grouped/00002.1',3,'2026-11-29T03:46:36.690569+00:00','2026-11-29T03:46:36.833805+00:00');
INSERT INTO attempts VALUES(8,3,8,1,'measured','/home/ada/frontrunner-runs/grouped/00003.1',3,'2026-11-29T03:46:36.926132+00:00','2026-11-29T03:46:36.951902+00:00');
INSERT INTO attempts VALUES(9,3,9,1,'measured','/home/ada/frontrunner-runs/grouped/00004.1',3,'2026-11-29T03:46:37.031596+00:00','2026-11-29T03:46:37.059191+00:00');
INSERT INTO attempts VALUES(10,3,10,1,'measured','/home/ada/frontrunner-runs/grouped/00005.1',3,'2026-11-29T03:46:37.144328+00:00','2026-11-29T03:46:37.171903+00:00');
CREATE TABLE standings (
	trial_id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	recipe_id VARCHAR NOT NULL, 
	repeats INTEGER NOT NULL, 
	step_time_s_median DOUBLE NOT NULL, 
	step_time_spread DOUBLE NOT NULL, 
	tokens_per_s DOUBLE NOT NULL, 
	model_tflops_per_device DOUBLE NOT NULL, 
	hardware_tflops_per_device DOUBLE NOT NULL, 
	mfu DOUBLE, 
	peak_memory_bytes_max_rank BIGINT NOT NULL, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO standings VALUES(1,1,'2b95d4f0f36a',1,7.8199483827719121773e-07,0.0028950747524062589097,654735779.4943820238,116.65820224719101361,119.34000000000000341,0.37390449438202250087,3974144);
INSERT INTO standings VALUES(2,1,'7a853424d78b',1,8.4999438943172950624e-07,0.0042007908056483902678,602356917.13483154774,107.32554606741575753,109.79280000000002815,0.34399213483146073855,1987072);
INSERT INTO standings VALUES(3,1,'5e7086e04835',1,8.2891452857382277768e-07,0.0022470325409507550459,617675263.67394518854,110.05490778036886468,112.58490566037734481,0.35274008903964376715,984192);
INSERT INTO standings VALUES(4,2,'65b284713e54',1,7.8199483827719121773e-07,0.0028324001478441276739,2618943117.9775280952,116.65820224719101361,119.34000000000000341,0.37390449438202250087,3974144);
INSERT INTO standings VALUES(5,2,'dd1fccf2f2e9',1,8.2891452857382277768e-07,0.00272983895894977251,2470701054.695780754,110.05490778036886468,112.58490566037734481,0.35274008903964376715,663840);
INSERT INTO standings VALUES(6,3,'9c93d5095159',1,9.8638524173229696311e-07,0.0074108577709732607885,2076267885.3581461905,369.94110674157309403,378.4455000000000382,0.37390449438202255638,3974144);
INSERT INTO standings VALUES(7,3,'4defcd3c003d',1,1.5639896765543824354e-06,0.0016003022147531387273,1309471558.9887640476,116.65820224719101361,119.34000000000000341,0.37390449438202250087,3974144);
INSERT INTO standings VALUES(8,3,'eb5a7ec4e4c2',1,1.0455683562362349249e-06,0.0012309226910999519679,1958743288.0737226009,349.00104409582360176,357.02405660377354479,0.35274008903964382266,984192);
INSERT INTO standings VALUES(9,3,'529b70ec884f',1,1.0721578714481488729e-06,0.0010027245245600108561,1910166454.5294945239,340.34581820224724423,348.16986000000002831,0.34399213483146073855,1987072);
INSERT INTO standings VALUES(10,3,'768c7edd394e',1,1.1364873437350380171e-06,0.0033128969059093992151,1802043825.0278246403,321.08096056815770679,328.46213207547162937,0.32452088191647227022,705664);
CREATE TABLE measurements (
	attempt_id INTEGER NOT NULL, 
	step_times_s_json VARCHAR NOT NULL, 
	tokens_per_step BIGINT NOT NULL, 
	tokens_per_s DOUBLE NOT NULL, 
	model_tflops_per_device DOUBLE NOT NULL, 
	hardware_tflops_per_device DOUBLE NOT NULL, 
	mfu DOUBLE, 
	peak_memory_bytes_json VARCHAR NOT NULL, 
	losses_json VARCHAR NOT NULL, 
	node_seconds DOUBLE NOT NULL, 
	build_time_s DOUBLE, 
	first_step_time_s DOUBLE, 
	PRIMARY KEY (attempt_id), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
INSERT INTO measurements VALUES(1,'[7.791311637285272e-07,7.819948382771912e-07,7.848585128258554e-07,7.834266755515232e-07,7.805630010028592e-07]',512,654735779.4943820238,116.65820224719101361,119.34000000000000341,0.37390449438202250087,'[3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144]','[]',3.9099741913859564063e-06,0.0,7.8199483827719121773e-07);
INSERT INTO measurements VALUES(2,'[8.454778364914828e-07,8.499943894317295e-07,8.545109423719762e-07,8.522526659018529e-07,8.477361129616061e-07]',512,602356917.13483154774,107.32554606741575753,109.79280000000002815,0.34399213483146073855,'[1987072,1987072,1987072,1987072,1987072,1987072,1987072,1987072]','[]',4.2499719471586475312e-06,0.0,8.4999438943172950624e-07);
INSERT INTO measurements VALUES(3,'[8.265585078577e-07,8.289145285738228e-07,8.312705492899455e-07,8.300925389318843e-07,8.277365182157614e-07]',512,617675263.67394518854,110.05490778036886468,112.58490566037734481,0.35274008903964376715,'[984192,984192,984192,984192,984192,984192,984192,984192]','[]',4.1445726428691139937e-06,0.0,8.2891452857382277768e-07);
INSERT INTO measurements VALUES(4,'[7.79193158559501e-07,7.819948382771912e-07,7.847965179948814e-07,7.833956781360363e-07,7.805939984183461e-07]',2048,2618943117.9775280952,116.65820224719101361,119.34000000000000341,0.37390449438202250087,'[3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144]','[]',1.5639896765543825625e-05,0.0,7.8199483827719121773e-07);
INSERT INTO measurements VALUES(5,'[8.260522838035519e-07,8.289145285738228e-07,8.317767733440936e-07,8.303456509589581e-07,8.274834061886874e-07]',2048,2470701054.695780754,110.05490778036886468,112.58490566037734481,0.35274008903964376715,'[663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840,663840]','[]',1.6578290571476452588e-05,0.0,8.2891452857382277768e-07);
INSERT INTO measurements VALUES(6,'[9.77138791522133e-07,9.86385241732297e-07,9.956316919424609e-07,9.91008466837379e-07,9.817620166272151e-07]',2048,2076267885.3581461905,369.94110674157309403,378.4455000000000382,0.37390449438202255638,'[3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144]','[]',4.9319262086614848155e-06,0.0,9.8638524173229696311e-07);
INSERT INTO measurements VALUES(7,'[1.5608237861270279e-06,1.5639896765543824e-06,1.567155566981737e-06,1.5655726217680596e-06,1.5624067313407053e-06]',2048,1309471558.9887640476,116.65820224719101361,119.34000000000000341,0.37390449438202250087,'[3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144,3974144]','[]',1.5639896765543822237e-05,0.0,1.5639896765543824354e-06);
INSERT INTO measurements VALUES(8,'[1.043940398222303e-06,1.045568356236235e-06,1.0471963142501668e-06,1.046382335243201e-06,1.0447543772292689e-06]',2048,1958743288.0737226009,349.00104409582360176,357.02405660377354479,0.35274008903964382266,'[984192,984192,984192,984192,984192,984192,984192,984192]','[]',5.2278417811811744124e-06,0.0,1.0455683562362349249e-06);
INSERT INTO measurements VALUES(9,'[1.0707979921365467e-06,1.0721578714481489e-06,1.0735177507597508e-06,1.07283781110395e-06,1.0714779317923478e-06]',2048,1910166454.5294945239,340.34581820224724423,348.16986000000002831,0.34399213483146073855,'[1987072,1987072,1987072,1987072,1987072,1987072,1987072,1987072]','[]',5.3607893572407443651e-06,0.0,1.0721578714481488729e-06);
INSERT INTO measurements VALUES(10,'[1.1317248708477401e-06,1.136487343735038e-06,1.1412498166223361e-06,1.1388685801786869e-06,1.134106107291389e-06]',2048,1802043825.0278246403,321.08096056815770679,328.46213207547162937,0.32452088191647227022,'[705664,705664,705664,705664,705664,705664,705664,705664]','[]',5.6824367186751898739e-06,0.0,1.1364873437350380171e-06);
CREATE TABLE endings (
	attempt_id INTEGER NOT NULL, 
	ended VARCHAR NOT NULL, 
	PRIMARY KEY (attempt_id), 
	CONSTRAINT ended_known CHECK (ended IN ('known', 'slower', 'noisy', 'limit', 'fixed')), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
CREATE TABLE telemetry (
	attempt_id INTEGER NOT NULL, 
	telemetry_json VARCHAR NOT NULL, 
	PRIMARY KEY (attempt_id), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
CREATE TABLE nodes (
	attempt_id INTEGER NOT NULL, 
	names_json VARCHAR NOT NULL, 
	troubles_json VARCHAR NOT NULL, 
	PRIMARY KEY (attempt_id), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
CREATE TABLE failures (
	attempt_id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	message VARCHAR NOT NULL, 
	log_tail VARCHAR NOT NULL, 
	log_path VARCHAR, 
	node_seconds DOUBLE NOT NULL, 
	PRIMARY KEY (attempt_id), 
	CONSTRAINT kind_known CHECK (kind IN ('out-of-memory', 'not-finite', 'hung', 'too-slow', 'crashed', 'lost', 'implausible', 'illegal-for-engine')), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES('0008');
CREATE INDEX ix_provenance_campaign_id ON provenance (campaign_id);
CREATE INDEX trials_by_recipe ON trials (recipe_id);
CREATE INDEX trials_by_state ON trials (campaign_id, state);
CREATE INDEX events_by_campaign ON events (campaign_id, id);
CREATE INDEX attempts_by_state ON attempts (campaign_id, state);
CREATE INDEX standings_by_tflops ON standings (campaign_id, model_tflops_per_device, recipe_id);
CREATE INDEX standings_by_step_time ON standings (campaign_id, step_time_s_median, recipe_id);
CREATE INDEX standings_by_tokens ON standings (campaign_id, tokens_per_s DESC, peak_memory_bytes_max_rank, recipe_id, trial_id);
CREATE INDEX standings_by_memory ON standings (campaign_id, peak_memory_bytes_max_rank, recipe_id);
COMMIT;
