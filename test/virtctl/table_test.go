package virtctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// command is a command of virtctl with the lines that are run of it, in order: a line finds the VMs as the lines before
// have left them.
type command struct {
	name  string
	about string // for the page
	lines []line
}

// line is a line of the shell.
type line struct {
	// prepare brings the VMs to where the line is of use.
	prepare func(b *bench) error
	line    string
	// effect is what a line that is accepted must have done. A line without effect must be refused.
	effect effect
	// missing is what a line that is refused must name.
	missing string
	// same: KubeVirt refuses it too.
	same bool
	// waits: virtctl waits in silence for what nobody makes; the line bounds it.
	waits bool
	// lacks: a part of the line has no effect, and the note has where that is said.
	lacks bool
	note  string
	// serves: the line runs until it is interrupted; its effect is looked at while it does.
	serves   bool
	terminal bool
}

// Images, JSONPaths and flags of the table.
const (
	tiny     = "localhost/kubeqemu/tiny-virtio-container-disk:dev"
	printed  = "{.status.printableStatus}"
	paused   = `{.status.conditions[?(@.type=="Paused")].status}`
	strategy = "{.spec.runStrategy}"
	uid      = "{.metadata.uid}"
	leaves   = "{.status.evacuationNodeName}"
	migrates = "{.status.migrationState.migrationUid}"
	evict    = `kubectl patch vmi vm --subresource=status --type=merge --patch="{\"status\":{\"evacuationNodeName\":\"$(kubectl get vmi vm -o jsonpath={.status.nodeName})\"}}"` // as an eviction does
	ssh      = `-i key --known-hosts known -t "-o StrictHostKeyChecking=no"`
)

// commands is the table. Its parts are in the order in which they are run.
func commands() []command {
	return slices.Concat(power(), screens(), guests(), objects(), cluster(), unserved())
}

// sh prepares by a line of the shell.
func sh(line string) func(b *bench) error {
	return func(b *bench) error {
		_, err := b.shell(line)
		return err
	}
}

// isRunning prepares by a line of the shell, and waits for VM vm to run.
func isRunning(line string) func(b *bench) error {
	return func(b *bench) error {
		if _, err := b.shell(line); err != nil {
			return err
		}
		return b.await(patience, func() error {
			got, err := b.value("vm/vm", printed)
			if err == nil && got != "Running" {
				err = fmt.Errorf("VM vm is %s", got)
			}
			return err
		})
	}
}

// migrationIsGone waits until a migration that was cancelled has been deleted.
func migrationIsGone(b *bench) error {
	_, err := b.shell("kubectl wait --for=delete vmim -l kubevirt.io/vmi-name=vm --timeout=60s")
	return err
}

func power() []command {
	return []command{
		{"start", "", []line{
			{line: "virtctl start vm --dry-run", effect: stays("vm/vm", strategy)},
			{line: "virtctl start vm --paused", effect: becomes("vm/vm", printed, "Paused")},
			{line: "virtctl start vm", missing: "already running", same: true},
		}},
		{"unpause", "", []line{
			{line: "virtctl unpause vmi vm --dry-run", effect: stays("vmi/vm", paused)},
			{line: "virtctl unpause vm vm", effect: becomes("vm/vm", printed, "Running")},
		}},
		{"pause", "", []line{
			{line: "virtctl pause vm vm --dry-run", effect: stays("vm/vm", printed)},
			{line: "virtctl pause vmi vm", effect: becomes("vmi/vm", paused, "True")},
			{line: "virtctl pause vm vm", missing: "VMI is already paused", same: true},
			{prepare: isRunning("virtctl unpause vmi vm"), line: "virtctl pause vm vm", effect: becomes("vm/vm", printed, "Paused")},
		}},
		{"reset", "", []line{{prepare: isRunning("virtctl unpause vm vm"), line: "virtctl reset vm", effect: rebooted("vm")}}},
		{"soft-reboot", "", []line{{line: "virtctl soft-reboot vm", effect: rebooted("vm"), note: "The guest has no agent, and obeys the power button"}}},
		{"evacuate-cancel", "", []line{
			{prepare: sh(evict), line: "virtctl evacuate-cancel vm vm --dry-run", effect: stays("vmi/vm", leaves)},
			{line: "virtctl evacuate-cancel vm vm", effect: becomes("vmi/vm", leaves, "")},
			{prepare: sh(evict), line: "virtctl evacuate-cancel vmi vm", effect: becomes("vmi/vm", leaves, "")},
		}},
		{"migrate", "", []line{
			{line: "virtctl migrate vm --dry-run --addedNodeSelector=a=b", effect: stays("vm/vm", printed)},
			{line: "virtctl migrate vm", effect: changes("vmi/vm", migrates), note: "The cluster of this test has one node, so that the guest goes nowhere"},
			{line: "virtctl migrate vm", missing: "in-flight migration detected"},
		}},
		{"migrate-cancel", "", []line{
			{line: "virtctl migrate-cancel vm --dry-run", effect: stays("vmi/vm", migrates)},
			{line: "virtctl migrate-cancel vm", effect: becomes("vmi/vm", "{.status.migrationState.abortStatus}", "Succeeded")},
			{prepare: migrationIsGone, line: "virtctl migrate-cancel vm", missing: "Found no migration to cancel"},
		}},
		{"restart", "", []line{
			{line: "virtctl restart vm --dry-run", effect: stays("vmi/vm", uid)},
			{line: "virtctl restart vm", effect: changes("vmi/vm", uid)},
			{prepare: isRunning("true"), line: "virtctl restart vm --force --grace-period=0", effect: changes("vmi/vm", uid)},
		}},
		{"stop", "", []line{
			{prepare: isRunning("true"), line: "virtctl stop vm --dry-run", effect: stays("vm/vm", strategy)},
			{line: "virtctl stop vm --force --grace-period=1", effect: becomes("vm/vm", printed, "Stopped")},
			{prepare: isRunning("virtctl start vm"), line: "virtctl stop vm", effect: becomes("vm/vm", printed, "Stopped")},
		}},
	}
}

// shows: the guest's shell answers in the console.
func shows() effect {
	return seen("the guest's shell answers", func(b *bench, p *program) error {
		_, err := p.types(b, "echo $((6*7))-", "(42-)")
		return err
	})
}

// dataSource leads to the claim of testdata/objects.yaml.
const dataSource = `{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": {"name": "source"}, "spec": {"source": {"pvc": {"namespace": "virtctl", "name": "claim"}}}}`

// fills: a VM made DataVolumes of these kinds of source, in the order of its templates.
func fills(vm, sources string) effect {
	return seen("DataVolumes of "+vm+" are made with the sources "+sources, func(b *bench, _ *program) error {
		return b.await(patience, func() error {
			got, err := b.shell("for d in $(kubectl get vm " + vm + " -o jsonpath='{.spec.dataVolumeTemplates[*].metadata.name}'); do " +
				"kubectl get datavolume $d -o jsonpath='{.spec.source}' | cut -d'\"' -f2; done | xargs")
			if err == nil && strings.TrimSpace(got) != sources {
				err = fmt.Errorf("the DataVolumes' sources are %q, want %q", strings.TrimSpace(got), sources)
			}
			return err
		})
	})
}

func screens() []command {
	return []command{
		{"console", "", []line{
			{prepare: sh("kubectl wait --for=delete vmi/vm --timeout=2m"), line: "virtctl console vm --timeout=1", missing: "not found", same: true},
			{prepare: sh("virtctl start vm && kubectl wait --for=create vmi/vm --timeout=1m"), line: "virtctl console vm --timeout=5", effect: shows(), serves: true, terminal: true,
				note: "The guest does not run yet when virtctl is started"},
		}},
		{"vnc", "", []line{
			{line: "virtctl vnc vm --preserve-session --vnc-type=tiger --vnc-path=./viewer", effect: wrote("viewed", "^RFB 003.008\n$"), note: "`viewer` stands for a viewer"},
			{line: "virtctl vnc vm --proxy-only --address=127.0.0.1 --port=47005", effect: answers("tcp", "127.0.0.1:47005", "", "RFB 003.008\n"), serves: true},
		}},
		{"vnc screenshot", "", []line{
			{line: "virtctl vnc screenshot vm --file=screen.png", effect: picture("screen.png")},
			{line: "virtctl vnc screenshot vm --file=moved.png --move-cursor", effect: picture("moved.png")},
		}},
		{"port-forward", "", []line{
			{line: "virtctl port-forward vm/vm 47007:7", effect: answers("tcp", "127.0.0.1:47007", "to-and-fro", "to-and-fro"), serves: true},
			{prepare: udpEcho, line: "virtctl port-forward vmi/debian udp/47007:7007 --address=127.0.0.1", effect: answers("udp", "127.0.0.1:47007", "to-and-fro", "to-and-fro"), serves: true},
			{line: "virtctl port-forward vmi/vm 7 --stdio", effect: echoes("to-and-fro\n"), serves: true},
		}},
	}
}

func guests() []command {
	return []command{
		{"ssh", "", []line{
			{prepare: reached, line: "virtctl ssh demo@vmi/debian " + ssh + ` --command hostname --port=22`, effect: prints("the guest's host name", "^debian\n$")},
			{line: "virtctl ssh vm/debian --username=demo --identity-file=key --known-hosts=known --local-ssh-opts='-o StrictHostKeyChecking=no' -c 'whoami'", effect: prints("the user's name", "^demo\n$")},
		}},
		{"scp", "", []line{
			{line: "virtctl scp sent.txt demo@vmi/debian:/tmp/sent.txt " + ssh + " --port=22", effect: guest("the file is in the guest", "'grep -q scp /tmp/sent.txt'")},
			{prepare: sh("virtctl ssh demo@vmi/debian " + ssh + " -c 'mkdir /tmp/folder && echo kept > /tmp/folder/file'"),
				line:   "virtctl scp vm/debian:/tmp/folder fetched --recursive --preserve --username=demo --identity-file=key --known-hosts=known --local-ssh-opts='-o StrictHostKeyChecking=no'",
				effect: wrote("fetched/file", "^kept\n$")},
		}},
		{"guestosinfo", "needs a guest agent", []line{
			{prepare: sh("kubectl wait --for=condition=AgentConnected vmi/debian --timeout=5m"), line: "virtctl guestosinfo debian", effect: prints("the agent's answer", `"id": "debian"`)},
			{line: "virtctl guestosinfo vm", missing: "an error on the server", same: true,
				note: "virtctl reads this answer as bytes, and so leaves out virt-api's words: VMI does not have guest agent connected"},
		}},
		{"userlist", "needs a guest agent", []line{
			{prepare: loggedIn, line: "virtctl userlist debian", effect: prints("the user of the console", `"userName": "demo"`)},
			{line: "virtctl userlist vm", missing: "VMI does not have guest agent connected", same: true},
		}},
		{"fslist", "needs a guest agent", []line{
			{line: "virtctl fslist debian", effect: prints("the agent's answer", `"mountPoint": "/"`)},
			{line: "virtctl fslist vm", missing: "VMI does not have guest agent connected", same: true},
		}},
		{"credentials add-ssh-key", "", []line{
			{line: "virtctl credentials add-ssh-key keyed --user=demo --file=extra.pub --create-secret", effect: keyed("keyed", "extra")},
			{line: `virtctl credentials add-ssh-key debian --user=demo --value="$(cat other.pub)" --update-secret --secret=debian-keys --force`,
				effect: guest("the guest's authorized_keys gets the key", "'grep -q other ~/.ssh/authorized_keys'")},
			{line: "virtctl credentials add-ssh-key debian --user=demo --file=extra.pub --create-secret", missing: "is running", same: true},
		}},
		{"credentials remove-ssh-key", "", []line{
			{prepare: sh("printf %s \"$(cat other.pub)\" > bare.pub"), line: "virtctl credentials remove-ssh-key debian --user=demo --file=bare.pub --secret=debian-keys --force",
				effect: guest("the guest's authorized_keys loses the key", "'! grep -q other ~/.ssh/authorized_keys'"),
				note:   "The file must not end in a newline: virtctl then finds no such key, removes none, and says nothing, with KubeVirt too"},
			{line: `virtctl credentials remove-ssh-key keyed --user=demo --value="$(cat extra.pub)"`, effect: unkeyed("keyed", "extra")},
		}},
		{"credentials set-password", "", []line{
			{line: "virtctl credentials set-password debian --user=demo --password=second --secret=debian-password --force",
				effect: guest("the guest has the password", `'sudo perl -e "(getpwnam(q(demo)))[1] eq crypt(q(second), (getpwnam(q(demo)))[1]) or exit 1"'`)},
		}},
	}
}

// reached waits until the Debian guest's SSH server lets its user in.
func reached(b *bench) error {
	return b.await(patience, func() error {
		_, err := b.shell("virtctl ssh demo@vmi/debian " + ssh + " -c true")
		return err
	})
}

// udpEcho has the Debian guest send back what comes to UDP port 7007.
func udpEcho(b *bench) error {
	if err := reached(b); err != nil {
		return err
	}
	_, err := b.shell("virtctl ssh demo@vmi/debian " + ssh + ` -c 'nohup perl -MSocket -e "socket(S,PF_INET,SOCK_DGRAM,0); bind(S,sockaddr_in(7007,INADDR_ANY)); ` +
		`while (\$from=recv(S,\$said,99,0)) {send(S,\$said,0,\$from)}" >/dev/null 2>&1 </dev/null &'`)
	return err
}

// loggedIn has a user log in at the Debian guest's console, with the password of the access credentials.
func loggedIn(b *bench) error {
	p, err := b.start("virtctl console debian", true)
	if err != nil {
		return err
	}
	for _, step := range [][2]string{{"", "(login:)"}, {"demo", "(Password:)"}, {"first", "(demo@debian)"}} {
		if _, err = p.types(b, step[0], step[1]); err != nil {
			break
		}
	}
	_ = p.end() // a console that has to be killed is as good
	return err
}

// keys are the SSH keys in the Secret that a VM's access credentials name.
func (b *bench) keys(vm string) (string, error) {
	secret, err := b.value("vm/"+vm, "{.spec.template.spec.accessCredentials[0].sshPublicKey.source.secret.secretName}")
	if err != nil || secret == "" {
		return "", err
	}
	return b.shell("kubectl get secret " + secret + ` -o go-template='{{range .data}}{{base64decode .}}{{"\n"}}{{end}}'`)
}

func keyed(vm, key string) effect {
	return effect{"a Secret with the key is one of the VM's access credentials", func(b *bench) (after, error) {
		before, err := b.keys(vm)
		if err == nil && before != "" {
			err = fmt.Errorf("VM %s has the keys %q before", vm, before)
		}
		return func(*program) error {
			keys, err := b.keys(vm)
			if err == nil && !strings.Contains(keys, " "+key) {
				err = fmt.Errorf("VM %s has the keys %q", vm, keys)
			}
			return err
		}, err
	}}
}

func unkeyed(vm, key string) effect {
	return effect{"the Secret loses the key", func(b *bench) (after, error) {
		before, err := b.keys(vm)
		if err == nil && !strings.Contains(before, " "+key) {
			err = fmt.Errorf("VM %s has the keys %q before", vm, before)
		}
		return func(*program) error {
			keys, err := b.keys(vm)
			if err == nil && strings.Contains(keys, " "+key) {
				err = fmt.Errorf("VM %s has the keys %q", vm, keys)
			}
			return err
		}, err
	}}
}

func objects() []command {
	return []command{
		{"expand", "", []line{
			{line: "virtctl expand --vm=sized --output=json > shown.json", effect: cpusOf("shown.json")},
			{line: "virtctl expand --file=sized.yaml -o json > file.json", effect: cpusOf("file.json")},
		}},
		{"expose", "", []line{
			{line: "virtctl expose vm vm --name=of-vm --port=7 --target-port=7 --port-name=echo --external-ip=192.0.2.1", effect: leadsTo("of-vm", "vmi.kubevirt.io/id=vm")},
			{line: "virtctl expose vmi vm --name=of-vmi --port=7 --protocol=UDP --type=NodePort --ip-family=IPv4 --ip-family-policy=SingleStack", effect: leadsTo("of-vmi", "vmi.kubevirt.io/id=vm")},
			{line: "virtctl expose vmirs set --name=of-set --port=7 --cluster-ip=None", effect: leadsTo("of-set", "app=set")},
		}},
		{"create vm", "", []line{
			{line: "virtctl create vm --name=made --run-strategy=Always --termination-grace-period=0 --memory=128Mi --volume-containerdisk=src:" + tiny + " | kubectl create -f -",
				effect: becomes("vm/made", printed, "Running")},
			{prepare: sh("kubectl delete vm made"), line: "virtctl create vm --name=typed --run-strategy=Halted --instancetype=virtualmachineinstancetype/small --preference=virtualmachinepreference/virtio --volume-containerdisk=src:" + tiny + " | kubectl create -f -",
				effect: all(becomes("vm/typed", printed, "Stopped"), expands("typed", 2))},
			{line: "virtctl create vm --name=inferred --run-strategy=Halted --infer-instancetype --infer-preference --volume-pvc=src:claim | kubectl create -f -",
				effect: all(becomes("vm/inferred", printed, "Stopped"), expands("inferred", 2))},
			{line: "virtctl create vm --name=from --run-strategy=Halted --infer-instancetype-from=disk --infer-preference-from=disk --volume-pvc=src:claim,name:disk | kubectl create -f -",
				effect: all(becomes("vm/from", printed, "Stopped"), expands("from", 2))},
			{line: `virtctl create vm --name=users --run-strategy=Halted --memory=128Mi --volume-containerdisk=src:` + tiny + ` --cloud-init=configdrive --user=demo --password-file=password --ssh-key="$(cat extra.pub)" --ga-manage-ssh | kubectl create -f -`,
				effect: becomes("vm/users", printed, "Stopped")},
			{line: `virtctl create vm --name=access --run-strategy=Halted --memory=128Mi --volume-containerdisk=src:` + tiny + ` --user=demo --access-cred=type:password,src:debian-password | kubectl create -f -`,
				effect: becomes("vm/access", printed, "Stopped")},
			{line: `virtctl create vm --name=data --run-strategy=Halted --memory=128Mi --volume-containerdisk=src:` + tiny + ` --cloud-init-user-data="$(echo '#cloud-config' | base64)" --cloud-init-network-data="$(echo 'version: 2' | base64)" | kubectl create -f -`,
				effect: becomes("vm/data", printed, "Stopped")},
			{prepare: sh("kubectl apply -f cdi.yaml && kubectl wait --for=condition=established --timeout=60s -f cdi.yaml"),
				line:   "virtctl create vm --name=imported --memory=128Mi --volume-import=type:blank,size:1Gi | kubectl create -f -",
				effect: all(becomes("vm/imported", printed, "Provisioning"), fills("imported", "blank")), note: "CDI's kinds are there, and CDI is not"},
			{prepare: sh("kubectl delete vm imported && echo '" + dataSource + "' | kubectl create -f -"),
				line:   "virtctl create vm --name=copied --memory=128Mi --volume-datasource=src:source --volume-clone-pvc=src:virtctl/claim --volume-blank=size:1Gi | kubectl create -f -",
				effect: all(becomes("vm/copied", printed, "Provisioning"), fills("copied", "blank pvc pvc")), note: "CDI's kinds are there, and CDI is not"},
			{prepare: sh("kubectl delete vm copied && kubectl delete -f cdi.yaml"), line: "virtctl create vm --name=answered --run-strategy=Halted --volume-sysprep=src:answers | kubectl create -f -",
				effect: becomes("vm/answered", printed, "Stopped")},
		}},
		{"create instancetype", "no devices of the host", []line{
			{line: "virtctl create instancetype --name=one --cpu=1 --memory=128Mi --namespaced | kubectl create -f -", effect: becomes("virtualmachineinstancetype/one", "{.spec.cpu.guest}", "1")},
			{line: "virtctl create instancetype --name=gpu --cpu=1 --memory=128Mi --gpu=name:a,devicename:b --namespaced | kubectl create -f -", missing: "gpus"},
			{line: "virtctl create instancetype --name=device --cpu=1 --memory=128Mi --hostdevice=name:a,devicename:b --namespaced | kubectl create -f -", missing: "hostDevices"},
			{line: "virtctl create instancetype --name=threads --cpu=1 --memory=128Mi --iothreadspolicy=auto --namespaced | kubectl create -f -", effect: becomes("virtualmachineinstancetype/threads", "{.spec.ioThreadsPolicy}", "auto")},
		}},
		{"create preference", "", []line{
			{line: "virtctl create preference --name=cores --cpu-topology=cores --machine-type=q35 --namespaced | kubectl create -f -", effect: becomes("virtualmachinepreference/cores", "{.spec.cpu.preferredCPUTopology}{.spec.machine.preferredMachineType}", "coresq35")},
			{line: "virtctl create preference --name=class --volume-storage-class=fast --namespaced | kubectl create -f -", effect: becomes("virtualmachinepreference/class", "{.spec.volumes.preferredStorageClassName}", "fast")},
		}},
		{"create clone", "no clones", []line{
			{line: "virtctl create clone --source-name=vm --target-name=copy --source-type=vm --target-type=vm --label-filter='*' --annotation-filter='*' --template-label-filter='*' --template-annotation-filter='*' --new-mac-address=default:02-00-00-00-00-01 --new-smbios-serial=new --name=clone | kubectl create -f -",
				missing: "VirtualMachineClone"},
		}},
	}
}

func cluster() []command {
	levels := "{.spec.configuration.developerConfiguration.logVerbosity"
	const kubevirt = "kubevirt/kubevirt -n kubevirt"
	return []command{
		{"version", "", []line{
			{line: "virtctl version", effect: prints("virtctl's version and virt-api's", `(?s)Client Version: .*GitVersion.*Server Version: .*GitVersion`)},
			{line: "virtctl version --client", effect: prints("virtctl's version", "Client Version: ")},
		}},
		{"permitted-devices", "says that there are none", []line{
			{line: "virtctl permitted-devices --namespace=kubevirt", effect: prints("no device is permitted", `^Permitted Devices: \nHost Devices: \s*GPU Devices: \s*$`), note: "A VMI with devices of the host is refused"},
			{line: "virtctl permitted-devices", missing: `no KubeVirt resource in "virtctl" namespace`, same: true},
		}},
		{"adm log-verbosity", "there is no virt-operator", []line{
			{line: "virtctl adm log-verbosity --virt-api=4 --virt-controller=3 --virt-handler=5 --virt-launcher=6",
				effect: all(becomes(kubevirt, levels+".virtAPI}"+levels+".virtController}"+levels+".virtHandler}"+levels+".virtLauncher}", "4356"), logs("virt-api", true))},
			{line: "virtctl adm log-verbosity --virt-api --all", effect: prints("the verbosity of each component", "(?s)virt-api=4.*virt-controller=3.*virt-handler=5.*virt-launcher=6"),
				note: "Of a component for which the KubeVirt object has no verbosity, virtctl says 2, as KubeVirt's components have; Kubeqemu's have 0"},
			{line: "virtctl adm log-verbosity --virt-operator=3", lacks: true, note: "There is no operator; the KubeVirt object's condition FieldsWithoutEffect says so",
				effect: all(becomes(kubevirt, levels+".virtOperator}", "3"), namedWithoutEffect("logVerbosity.virtOperator"))},
			{line: "virtctl adm log-verbosity --reset", effect: all(becomes(kubevirt, levels+".virtAPI}", ""), logs("virt-api", false))},
		}},
	}
}

// namedWithoutEffect: the KubeVirt object's condition names the field.
func namedWithoutEffect(field string) effect {
	return seen("the condition FieldsWithoutEffect names the field", func(b *bench, _ *program) error {
		return b.await(time.Minute, func() error {
			message, err := b.value("kubevirt/kubevirt -n kubevirt", `{.status.conditions[?(@.type=="FieldsWithoutEffect")].message}`)
			if err == nil && !strings.Contains(message, field) {
				err = fmt.Errorf("the condition says %q", message)
			}
			return err
		})
	})
}

// tools is an image in the place of KubeVirt's libguestfs-tools, which is not built here.
const (
	tools     = "localhost/kubeqemu-virtctl/tools:1"
	toolsNote = "The image stands for KubeVirt's libguestfs-tools"
)

// attached: virtctl's terminal is in a pod that has the claim, as this user.
func attached(user string) effect {
	return seen("a shell in a pod that has mounted the claim", func(b *bench, p *program) error {
		if _, err := p.types(b, "echo $((6*7)) $(busybox id)", "42 ("+user+`)\b`); err != nil {
			return err
		}
		claim, err := b.value("pod/libguestfs-tools-claim", "{.spec.volumes[0].persistentVolumeClaim.claimName}")
		if err == nil && claim != "claim" {
			err = fmt.Errorf("the pod has the claim %q", claim)
		}
		return err
	})
}

const noUpload = "virtctl has made the claim by then, and waits for the pod that takes the image"

func unserved() []command {
	return []command{
		{"addvolume", "no hotplug", []line{{line: "virtctl addvolume vm --volume-name=claim --serial=1 --cache=none --disk-type=disk --bus=scsi --persist --dry-run", missing: "hotplug is not supported by Kubeqemu yet"},
			{line: "virtctl addvolume vm --volume-name=claim", missing: "hotplug is not supported by Kubeqemu yet"}}},
		{"removevolume", "no hotplug", []line{{line: "virtctl removevolume vm --volume-name=claim --persist --dry-run", missing: "hotplug is not supported by Kubeqemu yet"}}},
		{"memory-dump", "no memory dumps", []line{
			{prepare: isRunning("true"), line: "virtctl memory-dump get vm --claim-name=claim", missing: "memory dumps are not supported by Kubeqemu yet"},
			{line: "virtctl memory-dump get vm --claim-name=dump --create-claim --storage-class=virtctl --access-mode=ReadWriteOnce", missing: "memory dumps are not supported by Kubeqemu yet",
				note: "virtctl has made the claim dump by then: delete it"},
			{line: "timeout 10 virtctl memory-dump download vm --output=dump.gz --format=raw --port-forward --local-port=47010", waits: true, missing: "memory dump",
				note: "virtctl waits for ten minutes, and says nothing"},
			{line: "virtctl memory-dump remove vm", missing: "memory dumps are not supported by Kubeqemu yet"},
		}},
		{"vmexport", "no exports", []line{
			{line: "virtctl vmexport create export --vm=vm --ttl=1h --labels=a=b --annotations=a=b --readiness-timeout=5s", missing: "virtualmachineexports.export.kubevirt.io"},
			{line: "virtctl vmexport download export --output=disk.img.gz --volume=root --insecure --keep-vme --format=raw --retry=1 --port-forward --local-port=47010 --readiness-timeout=5s",
				missing: "context deadline exceeded", note: "There is no export; virtctl waits for it, and gives up after the timeout (default: two minutes)"},
			{line: "virtctl vmexport download export --vm=vm --manifest --include-secret --manifest-output-format=json --service-url=host --delete-vme", missing: "virtualmachineexports.export.kubevirt.io"},
			{line: "virtctl vmexport create export --pvc=claim", missing: "virtualmachineexports.export.kubevirt.io"},
			{line: "virtctl vmexport create export --snapshot=none", missing: "virtualmachineexports.export.kubevirt.io"},
			{line: "virtctl vmexport delete export", same: true, effect: says("virtctl says that there is no such export", "does not exist")},
		}},
		{"guestfs", "needs an image: Kubeqemu has none", []line{
			{line: "virtctl guestfs claim", missing: "could not get guestfs image info", note: "virtctl leaves out virt-api's words: name an image of libguestfs-tools, with `--image=IMAGE --kvm=false`"},
			{line: "virtctl guestfs claim --image=" + tools + " --kvm=false --pull-policy=Never --root --vm=vm", serves: true, terminal: true, effect: attached("uid=0"), note: toolsNote},
			{prepare: sh("kubectl wait --for=delete pod/libguestfs-tools-claim --timeout=2m"),
				line: "virtctl guestfs claim --image=" + tools + " --kvm=false --pull-policy=Never --uid=1000 --gid=1000 --fsGroup=1000", serves: true, terminal: true, effect: attached("uid=1000"), note: toolsNote},
		}},
		{"usbredir", "no USB redirection", []line{{line: "virtctl usbredir vm --no-launch", missing: "USB redirection is not supported by Kubeqemu yet"}}},
		{"objectgraph", "no such graph", []line{{line: "virtctl objectgraph vm --vmi --exclude-optional --selector=a=b --output=json", missing: "is not supported by Kubeqemu yet"}}},
		{"image-upload", "nothing fills DataVolumes on the test's cluster; with config/datavolumes, or CDI, it works", []line{
			{line: "virtctl image-upload dv upload --size=64Mi --image-path=image.raw --uploadproxy-url=https://127.0.0.1:9 --insecure --storage-class=virtctl --access-mode=ReadWriteOnce --volume-mode=filesystem " +
				"--force-bind --retry=1 --wait-secs=5 --datasource --default-instancetype=small --default-instancetype-kind=virtualmachineinstancetype --default-preference=virtio --default-preference-kind=virtualmachinepreference", missing: "cdi.kubevirt.io"},
			{line: "virtctl image-upload dv upload --no-create --archive-path=image.raw --wait-secs=5", missing: `persistentvolumeclaims "upload" not found`, same: true},
			{line: "virtctl image-upload pvc upload --size=64Mi --image-path=image.raw --block-volume --wait-secs=5", missing: "context deadline exceeded", note: noUpload},
			{line: "virtctl image-upload --pvc-name=second --pvc-size=64Mi --image-path=image.raw --wait-secs=5", missing: "context deadline exceeded", note: noUpload},
		}},
	}
}

// cpusOf: the file is a VM with the vCPUs of its instancetype.
func cpusOf(file string) effect {
	return effect{"the VM has the 2 vCPUs of its instancetype, and does not name it", func(b *bench) (after, error) {
		return func(*program) error {
			text, err := os.ReadFile(filepath.Join(b.folder, file))
			if err != nil {
				return err
			}
			var vm struct{ Spec struct{ Instancetype any } }
			if err := json.Unmarshal(text, &vm); err != nil || vm.Spec.Instancetype != nil {
				return errors.Join(err, fmt.Errorf("it names the instancetype %v", vm.Spec.Instancetype))
			}
			return hasCPUs(text, 2)
		}, nil
	}}
}
