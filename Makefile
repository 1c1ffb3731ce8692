# Kubeqemu. `make help` lists the targets. Everything is built into _output/.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
OUTPUT := $(CURDIR)/_output
BIN := $(OUTPUT)/bin
export PATH := $(BIN):$(PATH)

# Go before 1.21 cannot read go.mod, and says so badly.
ifneq ($(filter-out help down,$(MAKECMDGOALS)),)
GO_FOUND := $(shell go version 2>/dev/null | awk '{print $$3}')
ifneq (,$(or $(if $(GO_FOUND),,none),$(filter go1 go1.0% go1.1% go1.2.% go1.3% go1.4% go1.5% go1.6% go1.7% go1.8% go1.9%,$(GO_FOUND)),$(filter go1.20 go1.20.%,$(GO_FOUND))))
$(error Kubeqemu is built with Go $(shell awk '/^go / {print $$2}' go.mod) or newer, and $(or $(GO_FOUND:go%=Go % is here),there is no Go here): get it from https://go.dev/dl/; from 1.21 on, Go fetches the right version by itself)
endif
endif
# What is compiled in one work tree is there for the next, at whatever path.
export GOFLAGS := -trimpath $(shell go env GOFLAGS)

# What a bare Debian 12 machine needs; installed by `make packages`.
PACKAGES := ca-certificates gcc libc6-dev iproute2 nftables runc containernetworking-plugins genisoimage dmsetup zstd dnsmasq-base \
	$(shell grep -v '^\#' config/images/packages.txt)

# $(call install,PACKAGES) installs those of Debian's packages that are missing.
install = @config/packages.sh $(1)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: demo
NODES ?= 1
demo: packages ## one-machine Kubernetes with Kubeqemu, boot a Debian VM, show its console; NODES=2 moves a guest from one node to another
	@NODES=$(NODES) test/demo/demo.sh

.PHONY: down
down: ## end the demo's cluster; nothing is left behind
	@if [ -x $(BIN)/cluster ]; then $(BIN)/cluster down --name demo; else echo "no cluster was built here"; fi

# Each part's times, for the table at the end of make test.
export TIMES := $(OUTPUT)/times

# No test is skipped for what a command makes (internal/testkit).
unit unit-plain unit-race: export KUBEQEMU_TEST_EVERYTHING := 1

.PHONY: test
test: packages ## everything CI runs: lint, unit tests and end-to-end tests on a real cluster; ends with the times of the slowest
	@# The end-to-end tests wait much, and are the longest: they begin as soon as their images are there, and the others compute meanwhile.
	@rm -rf $(TIMES)
	@status=0; $(MAKE) --no-print-directory -j6 test-e2e unit unit-plain lint || status=$$?; go -C tools run ./testtimes $(TIMES); exit $$status

# $(call part,NAME) runs the command after it as a part of make test, which yields to the end-to-end tests.
part = test/part.sh --yield $(1)
# $(call gotest,NAME) is go test as a part of make test. The times of its packages and tests are kept.
gotest = $(call part,$(1)) $(GOTESTSUM) --format pkgname --jsonfile $(TIMES)/$(1).json -- $(LINK)
# Nobody debugs these programs, and without DWARF and symbols the linker takes 40 % less CPU time.
LINK := -ldflags='-s -w'
GOTESTSUM := go tool -modfile=$(CURDIR)/tools/go.mod gotestsum --format-icons text

.PHONY: test-all
test-all: test unit-race e2e long libvirt-diff web-check e2e-long test-arm64 compat-e2e capk virtctl third-party release-check release-upgrade older e2e-older fuzz ## test, and the long ones

.PHONY: long
long: packages cluster images helm ## what of the launcher takes minutes: QEMUs that do not answer, floods, 200 migrations in which something goes wrong at random, its memory, and that of imports; a thousand VMs on a node that is made up; the Helm chart; guests in a guest, whose kernel has what this machine's may lack (half an hour or more)
	cd tools && go test -tags long -timeout 5m ./chart
	go test -race -tags long -timeout 60m ./launcher ./cmd/virt-launcher
	go test -race -tags long -timeout 60m ./apiserver/older ./apiserver/serving ./controllers/vm
	go test -race -tags long -timeout 60m -run OverThreeTimes -v ./netsetup
	go test -tags long -timeout 60m -run Memory -v ./cmd/virt-launcher
	go test -tags long -timeout 60m -run Memory -v ./cmd/virt-importer
	go test -tags long -timeout 60m -run 'MemoryUEFITPM|UEFINetwork|Elsewhere|Package' -v ./cmd/qemuargs
	go test -tags long -timeout 60m -run EachPlatformSwitchBoots -v ./cmd/qemuargs
	go test -tags long -timeout 60m -run 'TestManyManifests|TestQEMUTakesEachDiskThatIsAccepted' ./qemuargs/resolve
	go test -tags long -timeout 60m -run StartTime -v ./cmd/qemuargs/local
	config/images/build.sh tiny nested
	go test -tags long -timeout 50m -v ./test/kernel
	go test -tags long -timeout 60m -v ./test/churn

# What computes, and has no goroutines that -race could look at.
PURE := ./api/... ./launcher/life ./qemuargs/... ./test/imports ./test/libvirt
# Reconcilers, which start no goroutine: their tests step them, or an API server of their own does. And what only asks an API server.
RECONCILERS := $(addprefix ./controllers/,datavolume follow handover instancetypes kubevirt migration nodelabel pool replicaset stateclaim storageclass \
	vm vmi) ./apiserver/older ./test/admission ./test/rights
# What unpacks and converts images, and boots guests of them.
IMAGES := ./cmd/qemuargs ./internal/importer/fill ./internal/importer/image
# With -race all these take three to five times as long: unit-race looks, in make test-all.
PLAIN := $(IMAGES) $(RECONCILERS) $(PURE)
LONGEST_PLAIN := ./cmd/qemuargs ./controllers/vm ./test/admission ./internal/importer/fill
LONGEST_UNIT := ./netsetup ./controllers/filler ./launcher ./controllers/node/migration

.PHONY: unit
unit: packages image-launcher image-tiny cluster ## unit tests (-race), with real QEMU, network namespaces and API server
	@# Four packages at once even on two CPUs: many tests wait, for guests and API servers. The longest begin.
	@$(call gotest,unit) -race -vet=off -p 4 -timeout 60m $(LONGEST_UNIT) $$(comm -23 <(go list ./... | grep -v /test/e2e$$ | sort) <(go list $(PLAIN) | sort))
	@cd test/cluster && $(abspath test/part.sh) --yield unit-cluster go test -vet=off -timeout 60m .
	cd test/cluster/containerd && go test -vet=off -timeout 10m ./passtprofile
	@# They read files of another module, which Go's cache of results does not look at.
	cd tools && go test -vet=off -count 1 -timeout 10m ./...

.PHONY: unit-plain
unit-plain: packages image-launcher image-tiny cluster # the rest of the unit tests
	@$(call gotest,unit-plain) -vet=off -p 3 -timeout 60m $(LONGEST_PLAIN) $(PLAIN)

.PHONY: unit-race
unit-race: packages image-launcher image-tiny cluster ## what make test runs without -race
	go test -race -timeout 60m $(PLAIN)

.PHONY: quick
quick: ## gofmt, vet, the pure packages and their goldens: no root, no image (2 minutes)
	@$(gofmt)
	go vet $(PURE)
	go test -vet=off $(PURE)

# What make e2e has no time for; make e2e-long runs them, on two clusters beside each other.
# TestHandlerAwayForHalfAnHour waits for half an hour.
WAITS_AND_FLOODS := TestHandlerAwayForHalfAnHour TestVMOnABadNetworkSaysWhy TestVMIsThatCameAndWentLeaveNothing TestGuestFloods TestHostileAgent TestNetworkGarbage TestSerialFlood TestVirtioGarbage
OUTAGES := TestAPIServerStopped TestAutoscaler TestManyBusyGuestsStartAtOnce TestConsoleBulk TestConsoleOutages TestControllerKilled TestGuestFindsWhatItsVMISays TestGuestFollowsThoughVirtHandlerIsKilled TestCPULabels \
	TestFailingDiskPausesTheGuest TestEvictedGuestRunsAgain TestKubeVirtExamplesRun TestNodeWithoutHandlerGetsNoGuests TestImportFaults TestInstallation TestKubeletKilled TestLANPage TestLinkState TestManagedTap TestLargestPacketsGoToAndFromGuests TestMultus TestGuestsWaitWhileTheNodeIsFull \
	TestNoTwoQEMUsWriteToOneDisk TestGuestOverItsMemoryEndsAsOOMKilled TestPowerCut TestRealPrometheusScrapes TestGuestRoutesBetweenTwoNetworks TestRuntimeRestarted TestSRIOVResource TestStoppedQEMUOrLauncherIsSaidSilent TestSecondControllerTakesOver \
	TestUpgrade TestWeb TestVMIsGoOnWithoutVirtAPI TestWorkloadUpdateOneNode TestGuestSharesFilesOfAClaim TestFilesystemFollowsConfigMapChanges TestFilesystemDies TestFilesystemCrowd TestFilesystemHangs
empty :=
# $(call any,TESTS) is a pattern of exactly these tests.
any = ^($(subst $(empty) ,|,$(strip $(1))))$$
# What needs a second node.
TWO_NODES := TestAttacksHarmNoNeighbour TestVMOfADeadNodeRunsElsewhere TestVMOfACutOffNodeRunsElsewhere TestMigration TestMigrationCancelled TestMigrationCertificates TestMigrationFaults TestMigrationLargeDisk TestGuestWithTerabytesOfEmptyDisksMoves \
	TestMigrationClaims TestMigrationConfigVolumes TestMigrationImageContainers TestMigrationLinkState TestMigrationNetwork TestMigrationPasst TestMigrationPostCopy TestMigrationPostCopyFaults TestMigrationSSH TestMigrationTargetFull TestMigrationTPM TestMigrationTPMPersistent TestMigrationUEFI TestMigrationUEFIPersistent TestDrainMovesGuests TestVolumeUpdate TestWorkloadUpdate TestMigrationFilesystems
# What needs clusters with IPv6.
FAMILIES := TestDualStack TestIPv6Only TestIPv6OnlyDHCP TestMigrationDualStack
# Firmware that computes long under emulation: secure boot, measured boots, and variables and TPMs that outlive a stop.
# TestUEFI, TestRunUEFIAndTPM and the launcher's tests hold the same in make test, each with a shorter boot.
FIRMWARE := TestSecureBoot TestTPM TestTPMPersistent TestUEFIPersistent
# What needs kubelets that give pods CPUs of their own.
OWN_CPUS := TestDedicatedCPUs TestRealtimeGuestWithHugePages
# What needs the images of arm64's guests.
ARM64 := TestARM64
# What needs a profile on the node, and takes it away again.
PASST := TestPasst
# What takes long on two CPUs, and tests one feature beside others: make e2e is to end within 20 minutes.
SLOW := TestBlockDeviceIsTheGuestsDisk TestGuestReachesAndIsReachedByUDP TestDeafGuestsSuccessorWaits TestGraceEnds TestProbesOfGuestsByHTTPAndTCP TestUEFIKernelBoot
# What e2e-long runs for longer.
LONGER := TestVMsDoNotNoticeAKilledHandler

e2e_args = $(LINK) -race -vet=off -parallel 5 -timeout 60m -skip '$(call any,$(SLOW) $(WAITS_AND_FLOODS) $(OUTAGES) $(TWO_NODES) $(FAMILIES) $(FIRMWARE) $(OWN_CPUS) $(ARM64) $(PASST))' ./test/e2e

.PHONY: e2e
e2e: packages cluster images ## end-to-end tests on a cluster of their own
	go test -v $(e2e_args)

.PHONY: test-e2e
test-e2e: packages cluster images # make e2e as a part of make test, without -race, which would see the own code of these tests alone, for their CPU time over again
	@test/part.sh e2e $(GOTESTSUM) --format testname --jsonfile $(TIMES)/e2e.json -- $(filter-out -race,$(e2e_args))

.PHONY: e2e-older
e2e-older: packages cluster images ## make e2e on an API server that emulates Kubernetes 1.34, which has no image volumes (12 minutes)
	KUBEQEMU_E2E_CLUSTER=older KUBEQEMU_E2E_EMULATE=1.34 go test -v $(e2e_args)

# Older releases of Kubernetes that `cluster build --release` builds, and the tests that run on a cluster of each: of what those
# releases do in another way.
OLDER := 1.33 1.31
ON_OLDER := TestImageContainers TestCommonInstancetypes TestDataVolumes TestHostileImages TestInvalid TestRunStrategies TestVMIFromApplyToDelete

.PHONY: older
older: packages cluster images helm ## clusters of Kubernetes 1.33, and of 1.31 with containerd 1.7: policies and rights, an installation from a release's folder, guests (an hour the first time)
	ARCHES=amd64 config/release.sh v0.0.0-check
	@for release in $(OLDER); do $(MAKE) --no-print-directory older-$$release || exit 1; done

.PHONY: $(OLDER:%=older-%)
$(OLDER:%=older-%): older-%:
	$(BIN)/cluster build --release $*
	KUBEQEMU_TEST_KUBERNETES=$* go test -count 1 -timeout 30m ./test/admission ./test/rights
	RELEASE=$(OUTPUT)/release/v0.0.0-check KUBERNETES=$* CLUSTER=release-$(subst .,-,$*) test/release/check.sh
	KUBEQEMU_E2E_CLUSTER=older-$(subst .,-,$*) KUBEQEMU_E2E_KUBERNETES=$* go test -parallel 5 -timeout 40m -v -run '$(call any,$(ON_OLDER))' ./test/e2e

.PHONY: prometheus
prometheus: # what a test scrapes with; the product needs nothing of it
	$(call install,prometheus)

.PHONY: e2e-long
e2e-long: packages cluster images helm chromium prometheus ## the end-to-end tests of outages, power cuts, churn and floods at full length (an hour)
	@$(MAKE) --no-print-directory -j2 e2e-waits-and-floods e2e-outages
	@$(MAKE) --no-print-directory e2e-two-nodes
	@$(MAKE) --no-print-directory e2e-families
	@$(MAKE) --no-print-directory e2e-firmware
	@$(MAKE) --no-print-directory e2e-own-cpus
	@$(MAKE) --no-print-directory e2e-passt

run_e2e_long = KUBEQEMU_E2E_LONG=1 go test -race -timeout 180m -v -run '$(call any,$(1))' ./test/e2e

.PHONY: e2e-waits-and-floods
e2e-waits-and-floods: # half of e2e-long
	KUBEQEMU_E2E_CLUSTER=floods $(call run_e2e_long,$(WAITS_AND_FLOODS))

.PHONY: e2e-outages
e2e-outages: # the other half
	$(call run_e2e_long,$(OUTAGES) $(SLOW) $(LONGER))

.PHONY: e2e-two-nodes
e2e-two-nodes: packages cluster images ## the end-to-end tests that need a second node (half an hour)
	$(call install,openssh-client)
	KUBEQEMU_E2E_CLUSTER=two KUBEQEMU_E2E_NODES=2 $(call run_e2e_long,$(TWO_NODES))

.PHONY: e2e-families
e2e-families: packages cluster images ## the end-to-end tests of dual stack and of IPv6 only (8 minutes)
	KUBEQEMU_E2E_CLUSTER=dual KUBEQEMU_E2E_IPS=dual KUBEQEMU_E2E_NODES=2 $(call run_e2e_long,TestDualStack TestMigrationDualStack)
	KUBEQEMU_E2E_CLUSTER=six KUBEQEMU_E2E_IPS=ipv6 $(call run_e2e_long,TestIPv6Only TestIPv6OnlyDHCP)

.PHONY: e2e-firmware
e2e-firmware: packages cluster images ## the end-to-end tests of secure boot, TPMs and variables that outlive a stop (8 minutes)
	KUBEQEMU_E2E_CLUSTER=firmware $(call run_e2e_long,$(FIRMWARE))

.PHONY: e2e-own-cpus
e2e-own-cpus: packages cluster images ## the end-to-end tests of guests with CPUs of their own, which need two CPUs and 160 MiB of huge pages (4 minutes)
	KUBEQEMU_E2E_CLUSTER=cpus KUBEQEMU_E2E_OWN_CPUS=1 $(call run_e2e_long,$(OWN_CPUS))

.PHONY: e2e-passt
e2e-passt: packages cluster images ## the end-to-end test of guests that passt connects (3 minutes)
	KUBEQEMU_E2E_CLUSTER=passt $(call run_e2e_long,$(PASST))

# What arm64's images and tests need besides; the product needs nothing of it.
ARM64_PACKAGES := gcc-aarch64-linux-gnu qemu-system-arm xz-utils

.PHONY: images-arm64
images-arm64: image-packages ## the images for nodes of arm64, cross-built, into _output/images/arm64
	$(call install,$(ARM64_PACKAGES))
	ARCH=arm64 config/images/build.sh tiny launcher components

.PHONY: images-arm64-guest
images-arm64-guest: image-packages ## the launcher that emulates guests of arm64 on nodes of amd64, and such a guest
	config/images/build.sh launcher-arm64-emulator tiny-arm64

.PHONY: test-arm64
test-arm64: packages cluster images images-arm64 images-arm64-guest ## arm64: its images, its goldens in QEMU, and an emulated guest on a cluster of its own (10 minutes)
	GOARCH=arm64 go vet ./...
	cd tools && go test -tags long -timeout 5m -run TestImagesOfARM64 -v ./elfneeds
	go test -tags long -timeout 15m -run 'ARM64Starts$$' -v ./qemuargs/resolve
	KUBEQEMU_E2E_CLUSTER=arm $(call run_e2e_long,$(ARM64))

# What virt-api's page is made and looked at with; the product needs nothing of it.
WEB_PACKAGES := chromium fonts-dejavu-core

.PHONY: web
web: ## write apiserver/web/thirdparty from npm, in the versions of apiserver/web/package-lock.json (needs node)
	cd apiserver/web && npm ci --ignore-scripts --no-audit --no-fund && node thirdparty.mjs

.PHONY: web-check
web-check: chromium ## apiserver/web/thirdparty is what its lock says; what the page knows of machines
	cd apiserver/web && npm ci --ignore-scripts --no-audit --no-fund
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; node apiserver/web/thirdparty.mjs "$$folder"; \
		diff -r "$$folder" apiserver/web/thirdparty || { echo "apiserver/web/thirdparty is not what npm has: commit what 'make web' writes"; exit 1; }
	node --test apiserver/web/model.test.mjs apiserver/web/api.test.mjs

.PHONY: web-test
web-test: packages cluster images web-check ## virt-api's page in headless Chromium, with real guests; screenshots in _output/web
	cd test/web && go vet ./...
	go test -timeout 25m -v -run '^TestWeb$$' ./test/e2e

.PHONY: chromium
chromium: # what the page is tested with; a node that is no package of Debian's is as good
	$(call install,$(WEB_PACKAGES) $(if $(shell command -v npm),,nodejs npm))

# What the bench compares with; the product needs nothing of it.
BENCH_PACKAGES := libvirt-daemon libvirt-clients
BENCHFLAGS ?=

.PHONY: bench
bench: packages cluster build ## measure start times and memory beside bare QEMU, libvirt and plain pods; writes docs/benchmarks.md
	config/images/build.sh tiny debian launcher components
	@if ! dpkg-query -W -f '$${Status}\n' $(BENCH_PACKAGES) 2>/dev/null | grep -c 'ok installed' | grep -qx $(words $(BENCH_PACKAGES)); then \
		echo "installing Debian's libvirt, which the bench compares with: $(BENCH_PACKAGES)"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BENCH_PACKAGES) >/dev/null; } || \
		echo "COULD NOT INSTALL LIBVIRT: its rows will be missing" >&2; fi
	go build -o $(BIN)/bench ./test/bench
	$(BIN)/bench $(BENCHFLAGS)

# What the comparison of arguments asks; the product needs nothing of it.
LIBVIRT_PACKAGES := $(BENCH_PACKAGES) libvirt-daemon-driver-qemu qemu-system-arm

.PHONY: libvirt-diff
libvirt-diff: packages ## compare QEMU's arguments with those that Debian's libvirt makes; docs/libvirt.md says what may differ
	$(call install,$(LIBVIRT_PACKAGES))
	go test -count 1 -tags long -timeout 15m -run '^TestAgainstLibvirt$$' -v ./test/libvirt

.PHONY: fuzz
FUZZTIME ?= 30s
fuzz: packages image-launcher ## every fuzz test for FUZZTIME (default 30s)
	@# The end of the time can itself be reported as a failure (https://go.dev/issue/75804).
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for package in $$(go list ./... | grep -v /test/); do \
		list=$$(go test -list '^Fuzz' $$package); \
		for f in $$(grep '^Fuzz' <<<"$$list" || true); do \
			echo "== $$package $$f"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 3s $$package 2>&1 | tee $$log || \
				{ grep -q 'context deadline exceeded' $$log && ! grep -q 'Failing input' $$log || exit 1; }; \
		done; \
	done

.PHONY: compat
compat: ## the API against KubeVirt's types; with KUBECONFIG set, that cluster against KubeVirt's Go client
	cd test/compat && go vet ./... && go test -timeout 10m -v ./...

.PHONY: compat-e2e
compat-e2e: packages cluster ## KubeVirt's Go client against a cluster of its own (5 minutes, and a large download)
	config/images/build.sh tiny debian launcher components
	cd test/compat && go vet ./...
	test/compat/cluster.sh

.PHONY: capk
capk: packages cluster ## the code of cluster-api-provider-kubevirt makes, drains and deletes a VM on a cluster of its own (3 minutes, and a large download)
	config/images/build.sh tiny debian launcher components
	cd test/capk && go vet ./...
	CLUSTER=capk test/compat/cluster.sh test/capk

.PHONY: virtctl
UPDATE ?=
virtctl: packages cluster ## every command of KubeVirt's virtctl against a cluster of its own (20 minutes, and a large download); UPDATE=-update writes docs/virtctl.md
	$(call install,openssh-client)
	config/images/build.sh tiny debian launcher components
	cd test/virtctl && go vet ./... && go build -ldflags "-X kubevirt.io/client-go/version.gitVersion=$$(go list -m -f '{{.Version}}' kubevirt.io/kubevirt)" -o $(BIN)/virtctl kubevirt.io/kubevirt/cmd/virtctl
	CLUSTER=virtctl test/compat/cluster.sh test/virtctl $(UPDATE)

.PHONY: conformance
conformance: packages cluster ## KubeVirt's own functional tests against a cluster of its own; test/conformance/specs.txt has those that do not pass (an hour, and a large download)
	config/images/build.sh tiny debian launcher components
	test/conformance/build.sh
	test/conformance/images.sh
	test/conformance/cluster.sh

.PHONY: third-party
THIRD_PARTY ?=
third-party: packages cluster ## the real CDI, local-path-provisioner and a CSI driver, from the sources in THIRD_PARTY=FOLDER, on two clusters of their own (20 minutes the first time)
ifeq ($(THIRD_PARTY),)
	@echo "SKIPPED: NOTHING IS TESTED WITH THE REAL CDI AND CSI: THIRD_PARTY names no folder with its sources (test/thirdparty/build.sh)"
else
	config/images/build.sh tiny launcher components
	THIRD_PARTY=$(THIRD_PARTY) test/thirdparty/build.sh
	test/thirdparty/cluster.sh
	THIRD_PARTY=$(THIRD_PARTY) test/thirdparty/csi-build.sh
	test/thirdparty/csi.sh
endif

define gofmt
files=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); [ -z "$$files" ] || { echo "gofmt: $$files"; exit 1; }
endef

# What takes minutes is built with a tag of its own. No file is there only without the tags.
.PHONY: vet
vet:
	go vet -tags long,csi ./...
	@# Not kube and containerd: vet would look through all of Kubernetes for a few lines of theirs.
	cd test/cluster && go vet . ./cmd/... ./pause
	cd tools && go vet -tags long,csi ./...

.PHONY: lint
lint: packages ## gofmt, go vet, staticcheck, that generated files are up to date, and that comments and lines got no worse
	@$(gofmt)
	@go -C tools run ./prose ..
	@$(call part,vet) $(MAKE) --no-print-directory vet
	@$(call part,staticcheck) tools/in-copy.sh go tool -modfile=tools/go.mod staticcheck -tags long,csi ./...
	@$(call part,generate) tools/in-copy.sh $(MAKE) --no-print-directory generated

# The API but for CDI's group, which has an overlay of its own.
CORE_API := $(patsubst %,paths=./api/%/...,v1 instancetype migrations pool)

.PHONY: generate
generate: ## write deepcopy functions and the CRDs from api
	go tool -modfile=tools/go.mod controller-gen object crd:generateEmbeddedObjectMeta=true $(CORE_API) output:crd:dir=config/crd
	go tool -modfile=tools/go.mod controller-gen object crd paths=./api/cdi/... output:crd:dir=config/datavolumes/crd
	go -C tools run ./crd ../config/crd

.PHONY: generated
generated: # in a copy of the tree: says what is not up to date
	@$(MAKE) --no-print-directory generate
	@for folder in api config/crd config/datavolumes/crd; do diff -r "$$folder" "$$TREE/$$folder" || \
		{ echo "generated files are not up to date: commit what 'make generate' writes"; exit 1; }; done

.PHONY: passt-profile
passt-profile: ## write the seccomp profile of passt from containerd's (the sum of it in controllers/node/seccomp changes with it)
	cd test/cluster/containerd && go run ./passtprofile >$(CURDIR)/config/passt/passt.json.new
	mv config/passt/passt.json.new config/passt/passt.json

.PHONY: qemu-schemas
qemu-schemas: packages ## write what qemuargs knows of QEMU 7.2, 10.0 and 11.1 (root; downloads 350 MB of Debian's packages)
	tools/qemu-schemas.sh qemuargs/tool/schema/captures

.PHONY: build
build: ## the product's binaries, into _output/bin
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w" -o $(BIN)/ ./cmd/... # config/images/components.sh has why

.PHONY: qemuargs
qemuargs: ## qemuargs as a static program, into _output/bin
	CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags "-s -w" -o $(BIN)/qemuargs ./cmd/qemuargs

.PHONY: qemuargs-deb
qemuargs-deb: qemuargs ## Debian's package of qemuargs, into _output
	config/deb/qemuargs.sh $(BIN)/qemuargs $(OUTPUT)

.PHONY: images
images: image-tiny image-debian image-launcher image-components ## all container images, into _output/images (root)

.PHONY: images-deploy
images-deploy: image-launcher image-components ## the images that an installation needs, without guests (root)

# Guests' images, and the components' image.
.PHONY: image-tiny image-debian image-components
image-tiny: image-packages # the tiny guest's images, which a test boots
image-debian: image-packages ## a Debian guest's image, for qemuargs run
image-components: image-packages
image-tiny image-debian image-components:
	@test/part.sh $@ config/images/build.sh $(@:image-%=%)

.PHONY: image-launcher
image-launcher: image-packages ## the launcher's image, which a test looks into
	@test/part.sh $@ config/images/build.sh launcher

.PHONY: release
VERSION ?=
release: ## VERSION=v0.1.0: all that an installation needs, without a registry, into the folder _output/release/VERSION (root; docs/install.md)
	@config/release.sh "$(VERSION)"

.PHONY: release-check
release-check: packages cluster helm ## builds a release, and installs from its folder alone on a cluster of its own (root; 10 minutes)
	@test/release/check.sh

.PHONY: release-upgrade
release-upgrade: packages cluster ## builds a release and the release before, and goes from one to the other and back under guests, from their folders alone, on a cluster of its own (root; 20 minutes)
	@test/release/upgrade.sh

.PHONY: cluster
cluster: packages ## build the test cluster's Kubernetes and containerd
	@mkdir -p $(BIN)
	cd test/cluster && go build -o $(BIN)/cluster ./cmd/cluster
	@test/part.sh $@ $(BIN)/cluster build

.PHONY: deploy
deploy: ## install on the cluster of KUBECONFIG and wait until it is up; REGISTRY, TAG: where the images are
	@config/deploy.sh up

.PHONY: undeploy
undeploy: ## remove it again; refuses while there are VMs, unless FORCE=1
	@config/deploy.sh down

.PHONY: chart
chart: ## the Helm chart, of the same manifests, into _output/chart/kubeqemu
	kubectl kustomize config/datavolumes | go -C tools run ./chart --source ../config/chart --output $(OUTPUT)/chart/kubeqemu

.PHONY: helm
helm: ## Helm's program, of the version that the tests use, into _output/bin
	@mkdir -p $(BIN)
	cd tools/helm && go build -o $(BIN)/helm helm.sh/helm/v4/cmd/helm

.PHONY: packages
packages: ## install the Debian packages that building and testing need (root)
	$(call install,$(PACKAGES))

.PHONY: image-packages
image-packages: # says at once what building images needs
	@config/packages.sh --root "building images" $(PACKAGES)

.PHONY: clean
clean: ## remove everything that was built
	rm -rf $(OUTPUT)
